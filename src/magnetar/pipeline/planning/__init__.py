"""Where a read starts and ends, and how it is cut into tasks: what the driver decides."""
