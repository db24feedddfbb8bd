"""Benchmarks of the whole way: each is measured beside a reference, in turns, in one run."""
