"""A deterministic simulation of the deciding machines (ring 1) and of whole roles (ring 2).

The same seed gives the same run.
"""
