"""Benchmarks. Run from the project's root: ``python -m bench.throughput``, and so on."""
