"""Who serves what, and what is known of names: namespaces, partitioned topics, topic names."""
