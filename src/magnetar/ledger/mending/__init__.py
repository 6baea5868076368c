"""What bookies that were away are owed, and how they get it."""
