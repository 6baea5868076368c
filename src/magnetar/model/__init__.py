"""Frozen values that every package shares, and the one error tree. Standard library only."""
