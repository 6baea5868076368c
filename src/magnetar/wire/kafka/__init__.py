"""Kafka's protocol: requests and responses of every advertised version, record batches, codecs."""
