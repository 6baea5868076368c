"""Ring 2: Kafka's clients against whole brokers."""
