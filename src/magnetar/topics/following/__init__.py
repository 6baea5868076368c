"""Topics that another broker owns, as a read-only broker serves them."""
