"""Which bookies get a ledger."""
