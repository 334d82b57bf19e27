"""Benchmarks: one command per published claim. A claim is a ratio of two things measured in the same run."""
