"""Frozen players, `frozen:RUN` or `frozen:RUN/agents`: trained agents of other runs that do not learn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from remuda.core.errors import ConfigError
from remuda.core.game import GameSpec
from remuda.core.paths import is_folder
from remuda.core.plan import FROZEN
from remuda.learners.herd import FrozenPolicy, Part, agent_range
from remuda.runs.directory import RunDirectory


def load_frozen(parts: Sequence[Part], spec: GameSpec, trust: bool) -> list[Part]:
    """The parts of a herd; those with a frozen player get its trained weights."""
    return [
        replace(part, frozen=_load(part, spec, trust)) if part.player.startswith(f"{FROZEN}:") else part
        for part in parts
    ]


def _load(part: Part, spec: GameSpec, trust: bool) -> FrozenPolicy:
    """The frozen policy of a part.

    `frozen:RUN` takes the agents of the same numbers; `frozen:RUN/2` plays every agent of the part with agent 2.
    """
    text = part.player.removeprefix(f"{FROZEN}:")
    path, slash, agents = text.rpartition("/")
    chosen = range(part.herd_first, part.herd_first + part.agents)
    if slash and re.fullmatch(r"\d+(-\d+)?", agents) and not is_folder(Path(text)):
        source = RunDirectory(Path(path), trust=trust)
        chosen = agent_range(agents, source.spec.agents, part.player)
    else:
        source = RunDirectory(Path(text), trust=trust)
    if len(chosen) not in (1, part.agents):
        raise ConfigError(f"{part.player} names {len(chosen)} agents for {part.agents} places")
    places = [chosen[i] if len(chosen) == part.agents else chosen[0] for i in range(part.agents)]
    return source.frozen_policy(places, spec.groups[part.group])
