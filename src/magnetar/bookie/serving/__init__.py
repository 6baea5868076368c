"""How a bookie is reached: over TCP, and by calls within its process."""
