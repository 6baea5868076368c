"""Confirmed entries that bookies are missing since they were away, and how they get them."""
