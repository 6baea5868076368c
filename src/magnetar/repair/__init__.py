"""Repair: finding ledgers that lack copies, and giving them back what they lack."""
