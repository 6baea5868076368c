"""Kafka's protocol: one session per client connection, handlers by subject, groups.

``server`` is the package's front; ``wire.kafka`` has the bytes, ``topics`` what they are about.
"""
