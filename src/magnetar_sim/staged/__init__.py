"""Ring 2: queries that write by staged ledgers, beside brokers."""
