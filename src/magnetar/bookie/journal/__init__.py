"""The write-ahead log: commits, files, and what a start makes of them."""
