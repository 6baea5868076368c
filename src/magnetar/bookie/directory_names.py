"""Names that every directory of a bookie has, for those who look at one without being its owner."""

CURRENT = "current"
"""A folder: what BookKeeper's bookies have there too."""
VERSION = "VERSION"
"""In it: the cookie."""
GENERATION = "GENERATION"
"""In it, of a ledger directory: a number that grows (``generations.py``)."""
