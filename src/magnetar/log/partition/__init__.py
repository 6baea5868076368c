"""The partition engine: segment files as Kafka has them, a leader, its followers, in-sync
replicas."""
