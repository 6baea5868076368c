"""Logs: what a topic partition is stored in.

``seam`` is all that brokers know; ``acknowledgements`` decides what a cursor has seen; ``managed``
is the engine whose logs are chains of ledgers.
"""
