"""Nodes of the metadata store, kept in memory; reads that are shared; numbers that only grow."""
