"""What a session does for each request: one function per request, one table of them."""
