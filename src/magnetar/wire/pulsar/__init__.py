"""Pulsar's binary protocol: frames, commands, message metadata. No I/O.

``commands`` decodes and encodes any command; ``hot`` the few that a message costs; ``metadata``
and ``batches`` read what a producer stored; ``replies`` builds refusals. The layouts are in
``docs/formats/pulsar-protocol.md``.
"""
