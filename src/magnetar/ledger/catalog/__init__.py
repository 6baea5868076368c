"""Ledgers in the metadata store: ids, metadata, lists."""
