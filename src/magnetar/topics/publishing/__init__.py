"""Producers of a topic: who may be one, what they send again, and what is stored once."""
