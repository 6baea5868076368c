"""Entries of one protocol for clients of another: converted at the edge, never where they lie."""
