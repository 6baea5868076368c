"""The schema registry: which schemas a topic's values have had, and which may come next.

``registry`` keeps them; ``rules`` decides, for Avro by ``avro`` and ``resolution``. Schemas belong
to a topic, a partitioned one's to all its partitions together (docs/adr/0078-schema-registry.md).
"""
