"""Magnetar: an event-streaming platform with Pulsar's protocol and BookKeeper's ledgers."""

__version__ = "0.1.0"
