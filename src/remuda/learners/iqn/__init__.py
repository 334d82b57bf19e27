"""Implicit quantile networks."""
