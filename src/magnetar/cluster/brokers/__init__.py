"""Which brokers there are, what they say of themselves, and which can be reached."""
