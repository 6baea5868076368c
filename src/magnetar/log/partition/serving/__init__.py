"""A partition behind the log's seam: entries, positions and cursors over the replica that leads,
and the process's host of replicas."""
