"""Coordinators of groups and of transactions: their machines, and the logs that keep them."""
