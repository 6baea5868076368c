"""What a session does for each command: one function per command, one table of them."""
