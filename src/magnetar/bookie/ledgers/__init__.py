"""What is done with a ledger: adds, fences, reads, and what is known of it."""
