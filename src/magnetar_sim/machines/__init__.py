"""Ring 1: the deciding machines of ledgers and partitions, without the roles around them."""
