"""Deterministic simulation of the deciding machines: the same seed gives the same run."""
