"""Taking a ledger over from its writer: fence, vote, write again, close."""
