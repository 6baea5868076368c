"""The composition root: builds each role out of parts. Nothing else chooses implementations.

``storage`` and ``serving`` build the parts, ``standalone`` and ``roles`` put them together. What is
outside of the process comes from an ``Outside``: the simulator runs the same roles on one of its
own. The ledger library builds its client where roles have theirs from (``ledger.connecting``).

Every part is started on an ``AsyncExitStack`` and so ended in the reverse order, whether a role
was told to end, failed, or never came up. Parts that find out later that they must not go on (a
lost claim, a taken bookie id) tell the role's ``Fate``.
"""
