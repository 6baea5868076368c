"""Room on disks: deleted ledgers, compaction, reserves."""
