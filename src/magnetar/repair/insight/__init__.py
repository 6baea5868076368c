"""What operators ask of copies: where they are, what would be lost, are they sound, what moves."""
