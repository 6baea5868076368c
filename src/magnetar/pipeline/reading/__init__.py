"""The tasks of a read, and the readers that Spark drives."""
