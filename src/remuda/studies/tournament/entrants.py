"""Who takes part in a tournament: the herd of a run, one of its agents, at a checkpoint, or a scripted player."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from remuda.core.errors import ConfigError, UnknownName
from remuda.core.game import GameSpec, Group
from remuda.core.paths import is_file
from remuda.core.plan import Plan
from remuda.core.policy import Policy
from remuda.games.registry import find_game
from remuda.learners.herd import Part
from remuda.learners.registry import PLAYERS
from remuda.runs.directory import CONFIG, RunDirectory
from remuda.runs.storage import shown


@dataclass(frozen=True)
class Entrant:
    """One side of a match. A herd plays each place with its agent of that number, a single agent plays every place."""

    name: str
    run: RunDirectory | None = None  # None: a scripted player
    agent: int | None = None
    checkpoint: str | None = None

    def policy(self, place: int, plan: Plan, spec: GameSpec) -> Policy:
        """Its policy for one place of the game."""
        group = next(g for g in reversed(range(len(spec.groups))) if spec.first_agent(g) <= place)
        if self.run is None:
            players: dict[str, Callable[[Group, int], Policy]] = {**PLAYERS, **find_game(plan.game).players}
            return players[self.name](spec.groups[group], 1)
        agent = place % self.run.spec.agents if self.agent is None else self.agent
        return self.run.policy([agent], spec.groups[group], "cpu", self.checkpoint)


def read_entrants(words: Sequence[str]) -> list[Entrant]:
    """The entrants that words name, in an order that does not depend on the order of the words.

    `RUN`, `RUN/2` (agent 2), `RUN@best` or `RUN@000001000` (a checkpoint), both `RUN/2@best`; any other word is a
    scripted player.
    """
    entrants = sorted((_read(word, name) for word, name in _shortened(words)), key=lambda own: own.name)
    names = [own.name for own in entrants]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{twice} is named twice: name each entrant once")
    if len(entrants) < 2:
        raise ConfigError("a tournament needs at least two entrants: runs, agents of runs (RUN/2), scripted players")
    return entrants


def split_word(word: str) -> tuple[Path, int | None, str | None]:
    """The directory, the agent and the checkpoint that a word names."""
    text, _, checkpoint = word.partition("@")
    path, slash, number = text.rstrip("/").rpartition("/")
    if slash and number.isdigit() and not is_file(Path(text) / CONFIG):
        return Path(path), int(number), checkpoint or None
    return Path(text), None, checkpoint or None


def names_run(word: str) -> bool:
    """Whether a word names a run; its directory may have a name like `lr=0.1`, which looks like a setting."""
    return is_file(split_word(word)[0] / CONFIG)


def _shortened(words: Sequence[str]) -> list[tuple[str, str]]:
    """Each word, and its name: without the directories that the words of all runs begin with."""
    runs = [Path(word).parts[:-1] for word in words if names_run(word)]
    shared = 0
    while runs and all(len(parts) > shared and parts[shared] == runs[0][shared] for parts in runs):
        shared += 1
    return [(word, str(Path(*Path(word).parts[shared:])) if names_run(word) else word) for word in words]


def _read(word: str, name: str) -> Entrant:
    folder, agent, checkpoint = split_word(word)
    if not names_run(word):
        if re.fullmatch(r"[\w-]+", word):
            return Entrant(word)
        raise ConfigError(f"{word} is neither a run directory nor a scripted player (see `remuda learners`)")
    run = RunDirectory(folder)
    run.checkpoint(checkpoint, only="policy")  # refused here, before anything is played
    if agent is not None and agent >= run.spec.agents:
        raise ConfigError(f"{word}: {folder} has agents 0 to {run.spec.agents - 1}")
    return Entrant(name, run, agent, checkpoint)


def check_players(entrants: Sequence[Entrant], plan: Plan, places: int) -> None:
    """Refuse scripted players that the game does not have, and agents that have no weights of their own."""
    known = [*PLAYERS, *find_game(plan.game).players]
    for own in entrants:
        if own.run is None and own.name not in known:
            raise UnknownName("run or scripted player", own.name, known)
        if own.run is not None:
            _check_agents(own, own.run, places)


def _check_agents(entrant: Entrant, run: RunDirectory, places: int) -> None:
    """Refuse a herd with an agent that neither learned nor played at random."""
    parts = [part for part in run.parts for _ in range(part.agents)]  # by agent
    wanted = {place % len(parts) for place in range(places)} if entrant.agent is None else {entrant.agent}
    without = next((agent for agent in sorted(wanted) if not _plays(parts[agent])), None)
    if without is not None:
        learned = next((agent for agent, part in enumerate(parts) if part.learns), None)
        at = f"@{entrant.checkpoint}" if entrant.checkpoint else ""
        path = shown(run.path)
        give = "" if learned is None else f": give {path}/{learned}{at}, an agent that did, and it plays each place"
        raise ConfigError(f"agent {without} of {path} did not learn there ({parts[without].player}){give}")


def _plays(part: Part) -> bool:
    return part.learns or part.player == "random"
