"""Share groups (KIP-932): who is in one, and which records of a partition have become what."""
