"""Recall: a compiled game that only an agent with a memory can play, and its critic's privileged state.

Each turn shows every agent a symbol of its own. The right action is the symbol that was shown `delay` turns earlier. A
whole episode of right answers pays 1; an agent without a memory gets 1 / symbols on average, whatever it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from remuda.core.errors import ConfigError
from remuda.core.game import Game, GameEntry, GameSpec, Group
from remuda.core.kernels import kernel
from remuda.core.options import Options
from remuda.core.rng import Keys, below, fold


class RecallOptions(Options):
    """The options of Recall."""

    agents: int = Field(2, ge=1, description="agents, each with its own symbols")
    symbols: int = Field(4, ge=2, description="how many different symbols there are")
    delay: int = Field(3, ge=1, description="turns between a symbol and its answer")
    turns: int = Field(24, ge=2, description="turns of an episode")

    def check(self) -> None:
        """Refuse an episode in which nothing can be answered."""
        if self.delay >= self.turns:
            raise ConfigError(f"delay={self.delay} leaves no turn to answer in: raise turns above it")


class Recall(Game):
    """Worlds of Recall. The privileged state is the right answer of every agent."""

    def __init__(self, options: RecallOptions, worlds: Sequence[int]) -> None:
        group = Group(
            name="players",
            size=options.agents,
            obs_shape=(options.symbols,),
            obs_dtype=np.uint8,
            actions=options.symbols,
            metrics=("right",),
            low=0,
            high=1,
            state_shape=(options.agents, options.symbols),
            state_dtype=np.uint8,
        )
        super().__init__(GameSpec("recall", (group,), options.turns, options.model_dump()), len(worlds))
        self.options = options
        self.keys: Keys = np.zeros(len(worlds), np.uint64)
        self.turn = np.zeros(len(worlds), np.int64)

    def reset(self, worlds: NDArray[np.int64], keys: Keys) -> None:
        """Draw new symbols."""
        self.signals[0].clear(worlds)
        self.keys[worlds] = keys
        self.turn[worlds] = 0
        self.over[worlds] = False

    def begin(self) -> None:
        """Do nothing: all changes happen in `end`."""

    def observe(self, group: int, first: int, last: int, out: NDArray[np.uint8]) -> None:
        """Write each agent's symbol of this turn, one-hot."""
        _write_symbols(self.keys, self.turn, 0, first, out)

    def observe_state(self, group: int, out: NDArray[np.uint8]) -> None:
        """Write the right answers of all agents, one-hot; none in the first `delay` turns."""
        _write_symbols(self.keys, self.turn, self.options.delay, 0, out)

    def act(self, group: int, first: int, last: int, actions: NDArray[np.int64]) -> None:
        """Pay for right answers."""
        signals, options = self.signals[0], self.options
        share = np.float32(1 / (options.turns - options.delay))
        rules = (options.delay, options.symbols, share)
        _answer(self.keys, self.turn, self.over, rules, first, actions, signals.rewards, signals.metrics)

    def end(self) -> None:
        """Count the turn; the last one ends the episode."""
        self.turn[~self.over] += 1
        self.over |= self.turn >= self.spec.turns
        self.signals[0].terminated[self.over] = True

    def text(self, world: int) -> str:
        """The turn, and how many answers were right."""
        return f"turn {self.turn[world]}, right answers {self.signals[0].metrics[world, :, 0].astype(int).tolist()}"


@kernel
def _symbol(key: Any, turn: int, agent: int, symbols: int) -> Any:
    return below(fold(key, turn), agent, symbols)


@kernel
def _write_symbols(keys: Any, turns: Any, delay: int, first: int, out: Any) -> None:
    """The symbols that were shown `delay` turns ago, one-hot, (worlds, agents, symbols)."""
    for w in range(out.shape[0]):
        for a in range(out.shape[1]):
            for i in range(out.shape[2]):
                out[w, a, i] = 0
            if turns[w] >= delay:
                out[w, a, _symbol(keys[w], turns[w] - delay, first + a, out.shape[2])] = 1


@kernel
def _answer(keys: Any, turns: Any, over: Any, rules: Any, first: int, actions: Any, rewards: Any, metrics: Any) -> None:
    delay, symbols, share = rules
    for w in range(actions.shape[0]):
        if over[w] or turns[w] < delay:
            continue
        for a in range(actions.shape[1]):
            if actions[w, a] == _symbol(keys[w], turns[w] - delay, first + a, symbols):
                rewards[w, first + a] += share
                metrics[w, first + a, 0] += 1


RECALL = GameEntry("recall", "repeat the symbol shown some turns ago: needs a memory", RecallOptions, Recall)
