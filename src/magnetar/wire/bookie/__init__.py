"""BookKeeper's bytes: its protocol (v2 and v3), entry digests, and what it keeps in ZooKeeper."""
