"""A run directory, for reading: its plan, metrics, result, checkpoints and trained weights."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, ValidationError

from remuda.core import session
from remuda.core.errors import CheckpointError, ConfigError, RunError, first_line
from remuda.core.game import GameSpec, Group
from remuda.core.json_text import to_json
from remuda.core.learner import COUNTERS
from remuda.core.paths import is_file
from remuda.core.plan import Plan, learner_of
from remuda.core.policy import Policy
from remuda.core.saved_state import SavedState
from remuda.core.yamlfile import read_yaml
from remuda.games.registry import AnyGame, find_game, game_name
from remuda.learners.herd import FrozenPolicy, Part, assign
from remuda.learners.registry import check_learner, find_learner, learner_options
from remuda.runs import checkpoint
from remuda.runs.callbacks.base import Row
from remuda.runs.callbacks.tables import Table, read_table
from remuda.runs.settings import complete, spec_of
from remuda.runs.storage import absolute, shown
from remuda.runs.trust import check_trust
from remuda.runs.zoo import FOLDER, is_zoo_name, zoo_path

__all__ = ["CONFIG", "CONSOLE_LOG", "RESULT", "RunDirectory", "to_json"]
T = TypeVar("T")
CONFIG = "config.yaml"
RESULT = "result.json"
CONSOLE_LOG = "console.log"
MAX_SHOWN = 3
"""Runs that an error message names."""


class ResultFacts(SavedState):
    """What of result.json others compute with."""

    model_config = ConfigDict(extra="ignore")

    weights_sha256: str
    finished: bool = False
    episodes: int = Field(0, ge=0)
    agent_steps: int = Field(0, ge=0)
    wall_s: float = Field(0.0, ge=0)
    cpu_s: float = Field(0.0, ge=0)
    peak_memory_bytes: int = Field(0, ge=0)
    evaluation: dict[str, Any] | None = None


class RunDirectory:
    """What training wrote into a run directory."""

    def __init__(self, path: Path | str, game: AnyGame | None = None, trust: bool = False, learner: Any = None) -> None:
        self.path = zoo_path(path) if is_zoo_name(path) else absolute(path)
        self.trust = trust  # whether names of code in it are followed, whoever made it
        if not is_file(self.path / CONFIG):
            raise RunError(f"{shown(self.path)} is not a run: it has no {CONFIG}{_runs_near(self.path)}")
        odd = _neither_file_nor_directory(self.path)
        if odd is not None:
            raise RunError(f"{odd} is a link, a pipe or a device, and runs have none: put a file or directory there")
        if game is not None:
            self._give_game(game)
        if learner is not None:
            self._give_learners(learner if isinstance(learner, list | tuple) else [learner])

    @property
    def shipped(self) -> bool:
        """Whether it is an agent of the zoo, into which nothing is written."""
        return self.path.is_relative_to(FOLDER)

    @classmethod
    def of(cls, run: RunDirectory | Path | AnyGame, game: AnyGame | None = None, trust: bool = False) -> Self:
        """A run, whether it is given as such or as its directory."""
        if isinstance(run, RunDirectory):
            trust = trust or run.trust
            if game is None and isinstance(run, cls) and trust == run.trust:
                return run
            return cls(run.path, game, trust)
        if not isinstance(run, str | Path):
            raise RunError(f"{run!r} is not a run: give a Run, or the path of a run directory")
        return cls(run, game, trust)

    def _give_game(self, game: AnyGame) -> None:
        """Put a game in the place of the one of another session that the plan names."""
        name = read_yaml(self.path / CONFIG).get("game")
        if not isinstance(name, str) or not session.is_session_name(name):
            raise ConfigError(f"the game of {self.path} is {name!r}, which is found by that name: leave game= out")
        game_name(game)  # raises if it cannot be a game
        session.bind(name, find_game(game) if isinstance(game, str) else game)

    def _give_learners(self, classes: Sequence[Any]) -> None:
        """Put learners in the places of those of another session that the plan names, each by the name of its class."""
        config = read_yaml(self.path / CONFIG)
        listed = config.get("learners")
        players = [config.get("learner"), *(listed.values() if isinstance(listed, dict) else [])]
        names = {name for own in players if session.is_session_name(name := learner_of(str(own)))}
        for own in classes:
            learner = check_learner(own, getattr(own, "__name__", repr(own)))
            fitting = [name for name in names if name.startswith(f"{session.PREFIX}{learner.__name__}-")]
            if not fitting:
                raise ConfigError(
                    f"{self.path} has no learner {learner.__name__} of another session: leave learner= out"
                )
            for name in fitting:
                session.bind(name, learner)

    @cached_property
    def plan(self) -> Plan:
        """What the run computes."""
        settings = read_yaml(self.path / CONFIG)
        check_trust(self.path, settings, self.trust)
        return complete(Plan.read(settings, f"{self.path / CONFIG}"))

    @cached_property
    def spec(self) -> GameSpec:
        """The shape of its game."""
        return spec_of(self.plan)

    @cached_property
    def parts(self) -> list[Part]:
        """Who plays which agents; frozen policies are not loaded."""
        return assign(self.plan, self.spec)

    @property
    def metrics(self) -> Table:
        """Training as columns, one entry per round and agent; `pandas.DataFrame(run.metrics)` takes it as it is."""
        return read_table(self.path / "metrics.csv")

    @property
    def evaluations(self) -> Table:
        """Evaluations as columns, one entry per evaluation and agent."""
        return read_table(self.path / "evaluations.csv")

    @property
    def system(self) -> Table:
        """How the engine did, as columns, one entry per round: times, waiting, policy lag."""
        return read_table(self.path / "system.csv")

    @property
    def result(self) -> Row:
        """The summary written when training ended."""
        try:
            result: Row = json.loads((self.path / RESULT).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            raise RunError(f"{self.path} has no result yet: finish it with `remuda resume {self.path}`") from None
        try:
            ResultFacts.model_validate(result)
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"]))
            named = f" ({where})" if where else ""
            raise RunError(
                f"{self.path / RESULT} is damaged{named}: `remuda resume {self.path}` writes it anew"
            ) from None
        return result

    @property
    def finished(self) -> bool:
        """Whether training came to the end of the plan and its result was written."""
        with suppress(RunError):
            return bool(self.result.get("finished"))
        return False

    def changed(self, settings: Mapping[str, Any]) -> Plan:
        """Its plan with some settings changed, checked again."""
        return Plan.read({**self.plan.model_dump(), **settings}, "the plan")

    def checkpoints(self) -> list[Path]:
        """Its checkpoints, newest first."""
        return checkpoint.every(self.path / checkpoint.CHECKPOINTS)

    def checkpoint(self, name: str | None = None, only: str | None = None) -> Path:
        """The newest checkpoint, or the one asked for; refused with the newest good one if it is damaged."""
        return self._while_it_trains(lambda: self._checkpoint(name, only))

    def checkpoint_arrays(self, file: str, name: str | None = None) -> dict[str, NDArray[Any]]:
        """The arrays in a file of a checkpoint."""
        return self._while_it_trains(lambda: checkpoint.read(self._checkpoint(name, file), file))

    def _while_it_trains(self, read: Callable[[], T]) -> T:
        """Read, and once more where training replaced or removed a checkpoint meanwhile."""
        while True:
            before = self._listing()
            try:
                return read()
            except CheckpointError:
                if self._listing() == before:
                    raise

    def _listing(self) -> list[tuple[str, int]]:
        """Every checkpoint, with the number by which the file system knows it."""
        found = []
        for path in (*self.checkpoints(), self.path / "best"):
            with suppress(OSError):
                found.append((path.name, path.stat().st_ino))
        return found

    def _checkpoint(self, name: str | None, only: str | None) -> Path:
        found = self.checkpoints()
        if not found:
            raise CheckpointError(f"{self.path} has no checkpoint yet: train it again from the start")
        given = self.path / ("best" if name == "best" else f"{checkpoint.CHECKPOINTS}/{name}")
        wanted = found[0] if name is None else given
        if (name != "best" and wanted not in found) or not checkpoint.intact(wanted, only):
            good = next((path for path in found if checkpoint.intact(path, only)), None)
            advice = f"the last good one is {good.name}: use --checkpoint {good.name}" if good else "none is left"
            if name and get_close_matches(name, ["best"]):
                advice = "the best one is called best"
            shown = found[0].name if name is None else repr(name)
            raise CheckpointError(f"checkpoint {shown} of {self.path} is damaged or missing; {advice}")
        return wanted

    def warm_start_state(self) -> dict[str, NDArray[Any]]:
        """The state of its learners for another run to begin with: all counts are zero."""
        state = self.checkpoint_arrays("learner")
        return {
            name: np.zeros_like(array) if name.rpartition("/")[2] in COUNTERS else array
            for name, array in state.items()
        }

    def policy(self, agents: Sequence[int], group: Group, device: str, name: str | None = None) -> Policy:
        """A policy with the trained weights of these agents, for a group they fit."""
        return self.frozen_policy(agents, group, name).make(group, device)

    def frozen_policy(self, agents: Sequence[int], group: Group, name: str | None = None) -> FrozenPolicy:
        """The trained weights of these agents and what it takes to act with them, if they fit the group."""
        if max(agents) >= self.spec.agents:
            raise RunError(f"{self.path} has no agent {max(agents)}: it has agents 0 to {self.spec.agents - 1}")
        parts = [next(p for p in self.parts if p.herd_first <= a < p.herd_first + p.agents) for a in agents]
        players = {part.player for part in parts}
        if players == {"random"}:
            return FrozenPolicy("random", None, self.plan.precision, [{} for _ in agents])
        if len(players) != 1 or not parts[0].learns:
            raise RunError(f"agents {list(agents)} of {self.path} are not all of one trained kind: {sorted(players)}")
        own = self.spec.groups[parts[0].group]
        spaces = [(each.obs_shape, each.actions, each.action_space) for each in (own, group)]
        if spaces[0] != spaces[1]:
            raise RunError(
                f"agents of {self.path} see {own.obs_shape} and have actions {own.gymnasium_actions}; "
                f"here they would see {group.obs_shape} and have {group.gymnasium_actions}"
            )
        player = parts[0].player
        options = learner_options(self.plan, player)
        shapes = self._weight_shapes(player, group, options)
        arrays = self.checkpoint_arrays("policy", name)
        weights = []
        for agent in agents:
            prefix = f"{agent}/"
            named = {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
            if {n: a.shape for n, a in named.items()} != shapes or any(a.dtype != np.float32 for a in named.values()):
                raise CheckpointError(f"the weights of agent {agent} in {self.path} do not fit its own plan")
            weights.append(named)
        return FrozenPolicy(player, options, self.plan.precision, weights)

    def _weight_shapes(self, player: str, group: Group, options: Any) -> dict[str, tuple[int, ...]]:
        """Shapes of one agent's named weights."""
        try:
            policy = find_learner(player).make_policy(group, 1, options, self.plan.precision, "cpu")
        except (MemoryError, OverflowError, RuntimeError, ValueError) as error:
            raise RunError(f"the networks of {self.path} cannot be made here: {first_line(error)}") from error
        return {name: array.shape for name, array in policy.named_arrays(policy.rows)[0].items()}


def _runs_near(folder: Path) -> str:
    """For an error message: the first runs inside a directory, or those beside it where there are none inside."""
    with suppress(OSError):
        for place, patterns in ((folder, ("*", "runs/*", "runs/*/*", "*/runs/*/*")), (folder.parent, ("*",))):
            found = sorted(path.parent for own in patterns for path in place.glob(f"{own}/{CONFIG}"))
            if found:
                more = ", …" if len(found) > MAX_SHOWN else ""
                return f"; runs near it: {', '.join(shown(path) for path in found[:MAX_SHOWN])}{more}"
    return ""


def _neither_file_nor_directory(folder: Path) -> Path | None:
    """The first link, pipe or device in a run: writing to it would write elsewhere, or block for ever."""
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *files)):
            with suppress(OSError):  # training may remove a file between listing and looking
                mode = path.lstat().st_mode
                if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                    return path
    return None
