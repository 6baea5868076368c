"""The write-ahead log: commits, their blocks, files."""
