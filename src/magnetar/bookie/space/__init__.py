"""Room on disks: deleted ledgers, compaction, reserves, what a full disk allows."""
