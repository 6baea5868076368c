"""Ring 2: brokers that replicate partitions among themselves."""
