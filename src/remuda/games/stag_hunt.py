"""Stag Hunt: the matrix arena with the payoffs of the stag hunt. A stag (first kind) pays only if both hunt it."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from remuda.core.game import GameEntry
from remuda.games.matrix import PLAYERS, Matrix, MatrixOptions
from remuda.games.shipped import SHIPPED


class StagHuntOptions(MatrixOptions):
    """The options of Stag Hunt: those of the matrix arena."""

    payoff: str | list[list[float]] = Field("stag_hunt", description="[[stag with stag, stag with hare], [hare …]]")


def _make(options: StagHuntOptions, worlds: Sequence[int]) -> Matrix:
    return Matrix(options, worlds, "stag_hunt")


ENTRY = GameEntry(
    name="stag_hunt", summary=SHIPPED["stag_hunt"].summary, options=StagHuntOptions, make=_make, players=PLAYERS
)
