"""Topics -> Iceberg tables: what the job ``table`` does."""
