"""Measurements beside other systems, which are fetched on demand: ``make bench-peers``."""
