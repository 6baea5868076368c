"""Brokers as the pipeline asks them: blocking or on a loop, whole entries, staged writes."""
