"""Conformance suites, and small odd games for tests of remuda and of your own policies and learners."""

from remuda.testing.games import BROKEN, BUSY, GIFTS, MASKED, ODD, RESPAWN, SLOW, UNEQUAL

__all__ = ["BROKEN", "BUSY", "GIFTS", "MASKED", "ODD", "RESPAWN", "SLOW", "UNEQUAL"]
