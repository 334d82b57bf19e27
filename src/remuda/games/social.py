"""What the social dilemmas share: their options, their views, and three sets of rules.

`rules` says whose game it is. `repaired` is SocialJax's game with its faults mended. `socialjax` is that game as it is,
fault by fault, for parity. `meltingpot` has moves relative to the facing, one agent after another, beams that rest and
are stopped, and agents that wait before they come back.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from remuda.core.errors import ConfigError
from remuda.core.game import GameSpec
from remuda.core.kernels import kernel
from remuda.core.options import Options
from remuda.games.grid import Arena, RecordedDraws, Scratch, Timing, View, arena_group, make_view
from remuda.games.socialjax import EXTRA_CHANNELS, FACINGS, write_socialjax_view

REPAIRED, SOCIALJAX, MELTINGPOT = 0, 1, 2
RULES = ("repaired", "socialjax", "meltingpot")
MAX_AGENTS = 100


class SocialOptions(Options):
    """Options of every social dilemma."""

    rules: Literal["repaired", "socialjax", "meltingpot"] = Field(
        "repaired", description="SocialJax's game without its faults, as it is, or Melting Pot's"
    )
    turns: int = Field(1000, ge=1, description="turns in an episode")
    view: int = Field(11, ge=3, le=31, description="rows and columns that an agent sees; odd")
    identities: bool = Field(False, description="views say which agent is seen, not only that it is another one")
    compass: bool = Field(True, description="views say where the agent faces on the map; not with rules=socialjax")

    def check(self) -> None:
        """Refuse views without a middle column."""
        if self.view % 2 == 0:
            raise ConfigError(f"view={self.view} should be odd: the agent is in the middle column")
        if self.rules == "socialjax" and self.identities:
            raise ConfigError("identities=true is not in the views of rules=socialjax: use rules=repaired")

    @property
    def variant(self) -> int:
        """The rules as a number."""
        return RULES.index(self.rules)


class SocialGame(Arena):
    """An arena whose views are ours, or SocialJax's."""

    rules: Any
    scratch: Scratch

    def __init__(
        self,
        spec: GameSpec,
        worlds: int,
        shape: tuple[int, int],
        view: View,
        variant: int,
        kinds: int = 1,
        beams: int = 1,
    ) -> None:
        super().__init__(spec, worlds, shape, view, kinds, beams)
        self.variant = variant
        self.facings = FACINGS if variant == SOCIALJAX else 4

    def observe(self, group: int, first: int, last: int, out: NDArray[Any]) -> None:
        """Write what each agent sees."""
        if self.variant == SOCIALJAX:
            _observe_socialjax(self.state, self.view, first, last, out)
        else:
            super().observe(group, first, last, out)

    @abstractmethod
    def replay(self, draws: RecordedDraws) -> None:
        """Play a turn with recorded random draws."""


def social_view(options: SocialOptions, own: Sequence[int], theirs: dict[int, int], first: int, agents: int) -> View:
    """The view of a game with codes `own` below `first`; `theirs` are SocialJax's codes of them, the last its largest.

    Our views have a channel for each code; SocialJax's have one for each of its own codes, and ten more.
    """
    if options.variant == SOCIALJAX:
        view = make_view({code: other - 1 for code, other in theirs.items()}, first, options.view)
        items = max(theirs.values())
        return view._replace(me=items, channels=items + EXTRA_CHANNELS)
    channels = {code: number for number, code in enumerate(own)}
    return make_view(channels, first, options.view, agents if options.identities else 0, options.compass)


def social_spec(
    name: str, options: SocialOptions, view: View, agents: int, actions: int, metrics: tuple[str, ...]
) -> GameSpec:
    """The spec of a game with one group of agents."""
    group = arena_group("agents", agents, view, actions, metrics)
    if options.variant == SOCIALJAX:  # inventories are seen as numbers, which wrap above 127
        group = type(group)(**{**group.__dict__, "obs_dtype": np.int8, "low": -128, "high": 127})
    return GameSpec(name, (group,), options.turns, options.model_dump())


def social_timing(options: SocialOptions, agents: int) -> Timing:
    """SocialJax multiplies rewards by the number of agents, and pays nothing in the last turn."""
    if options.variant == SOCIALJAX:
        return Timing(options.turns, float(agents), False)
    return Timing(options.turns, 1.0, True)


@kernel(allocates=False)
def _observe_socialjax(state: Any, view: Any, first: int, last: int, out: Any) -> None:
    out[:] = 0
    for w in range(out.shape[0]):
        for i in range(last - first):
            eaten = state.inventory[w, :, 0]
            write_socialjax_view(state.codes[w], state.places[w], eaten, first + i, view, out[w, i])
