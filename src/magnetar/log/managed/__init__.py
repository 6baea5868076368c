"""The managed log: a chain of ledgers, and cursors in ledgers of their own."""
