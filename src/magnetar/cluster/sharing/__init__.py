"""Brokers that share topics by bundles: who takes one, gives one away, and is asked for it."""
