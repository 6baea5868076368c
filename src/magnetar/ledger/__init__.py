"""The ledger client: the face of the store to the broker and to other systems.

``client.LedgerClient`` creates and opens ledgers; ``writer`` appends (``quorum_write`` decides),
``reader`` reads from any replica, ``recovery`` takes a ledger over (``recovery_plan`` decides),
``placement`` chooses bookies. ``bookies`` is the seam to them.
"""
