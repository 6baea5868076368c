"""Reads from any replica: hedged, in an order that learns."""
