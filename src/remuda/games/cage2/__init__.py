"""CAGE Challenge 2, exact and batched: a defender against scripted intruders in a network of 13 hosts."""

from remuda.games.cage2.game import ENTRY

__all__ = ["ENTRY"]
