"""Files and disks: durable writes, space, locks, descriptors, and files that are watched."""
