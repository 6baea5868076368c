"""A partition as Kafka's clients know it: batches in, transactions, idempotent producers."""
