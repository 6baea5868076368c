"""Frozen values that every room shares, and the one error tree. Standard library only."""
