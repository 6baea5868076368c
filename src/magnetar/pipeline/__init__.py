"""Spark: the ``magnetar`` data source, batch and streaming, reading and writing."""
