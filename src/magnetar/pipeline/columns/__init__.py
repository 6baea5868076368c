"""Stored entries -> Arrow columns, many messages at once."""
