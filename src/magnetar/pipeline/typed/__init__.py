"""Values with a schema, as Spark's columns: read by the schema that each was written with, and
written by the topic's.

``spark_types`` says which column a schema is. Avro's binary form is read by columns: ``avro_walk``
takes all values of a block apart at the same time, by the schema that wrote them, and
``avro_arrow`` makes Arrow arrays of that, by the schema of the reader; ``avro_encoding`` goes the
other way. ``plain_values`` has the types without a definition, ``json_values`` JSON. ``reading``
and ``writing`` put these to the source's batches, with versions and refusals.

Why: docs/adr/0086-typed-columns.md.
"""
