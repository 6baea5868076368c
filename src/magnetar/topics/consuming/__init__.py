"""A subscription and its consumers: entries on their way out, acknowledgements on the way back."""
