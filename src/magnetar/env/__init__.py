"""The outside world behind small seams: connections, disk lanes, metadata, and who owns a task."""
