"""Connections to bookies: channels of versions 2 and 3, their adds under way, who is registered."""
