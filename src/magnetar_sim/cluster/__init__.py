"""Ring 2: bookies and clients of the ledger library, what fails, what must hold of ledgers."""
