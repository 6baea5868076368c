"""Who a connection's client is, and what it may do: SASL, and what was granted to it lately."""
