"""Tables of topics: which columns they have, where they are, and reading entries back from them.

Nothing here writes a table (``pipeline/tables``) or knows brokers.
"""
