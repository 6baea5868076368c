"""Disks that forget: what a process did to its files, and what a loss of power leaves of it."""
