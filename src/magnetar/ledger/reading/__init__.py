"""Readers: of what is closed, of what is still written; hedged, in an order that learns."""
