"""What runs see of the outside: virtual time, processes, network, disks, a metadata store."""
