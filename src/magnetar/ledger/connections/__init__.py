"""Connections to bookies: lanes of versions 2 and 3, their adds under way, who is registered."""
