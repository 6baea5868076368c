"""The loss comparison: the same faults on both engines, as processes, with expected counts.

Why: docs/adr/0143-the-comparison-is-a-command.md.
"""
