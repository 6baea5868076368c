"""The bookie: the storage server's core, which both the TCP server and the in-process client call.

``bookie`` is the core; adds go to ``journal`` and ``write_cache``, flushes to ``entry_log`` and
``location_index``; ``server`` and ``session`` speak BookKeeper's protocol, ``local`` is the client
of the same process; ``cookie`` and ``registration`` tie the bookie to its metadata.
"""
