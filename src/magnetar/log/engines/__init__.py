"""Both engines as one store: which log is on which, and what logs have beside their entries."""
