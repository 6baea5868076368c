"""Who serves what, and what is known of names: tenants, namespaces, partitioned topics, owners."""
