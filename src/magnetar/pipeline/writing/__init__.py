"""Rows -> topics: at least once through brokers, exactly once by staged ledgers."""
