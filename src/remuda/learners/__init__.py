"""Algorithms, each for a slice of one group."""
