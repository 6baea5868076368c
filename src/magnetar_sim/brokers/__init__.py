"""Ring 2: brokers that share topics, those that serve reads only, and clients of theirs."""
