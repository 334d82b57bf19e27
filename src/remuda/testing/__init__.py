"""The conformance suite for games, and small games for tests of remuda and of your own policies and learners."""

from remuda.testing.broken_games import BROKEN
from remuda.testing.odd_games import ERRANDS, GIFTS, MASKED, ODD, RESPAWN, UNEQUAL
from remuda.testing.slow_games import BUSY, SLOW

__all__ = ["BROKEN", "BUSY", "ERRANDS", "GIFTS", "MASKED", "ODD", "RESPAWN", "SLOW", "UNEQUAL"]
