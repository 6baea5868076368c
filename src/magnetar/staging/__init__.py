"""Staged writes: rows that are written beside topics, decided once, and then taken into them.

``records`` is what is stored, ``commit_rules`` and ``marks`` decide; ``writer`` is an attempt's
side, ``committer`` the driver's, ``reading`` the owner's; ``collecting`` tidies up.

Why: docs/adr/0084-staged-writes.md.
"""
