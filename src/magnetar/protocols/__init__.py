"""The front ends of protocols: sessions and their handlers, one package per protocol.

Why: docs/adr/0090-packages-by-what-they-know.md.
"""
