"""Pulsar's protocol: one session per client connection, one handler per command.

``broker.Broker`` is the package's front; ``wire.pulsar`` has the bytes, ``topics`` what they are
about.
"""
