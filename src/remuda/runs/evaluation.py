"""Evaluation after training: greedy by default, on test episodes, with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.errors import ConfigError, GameError, UnknownName
from remuda.core.fragment import Fragment, Purpose
from remuda.core.game import GameSpec
from remuda.core.machine import cores
from remuda.core.paths import is_file, is_folder
from remuda.core.plan import Plan
from remuda.core.policy import PolicyBinding
from remuda.core.rewards import GAME_RETURN, REWARD
from remuda.core.task import Task
from remuda.core.threads import one_thread_each
from remuda.engines.collectors.inline import InlineCollectors
from remuda.games.registry import SHIPPED, AnyGame, find_game, installed_games
from remuda.learners.herd import assign, bind_policy
from remuda.rollout.config import RolloutConfig
from remuda.runs.directory import CONFIG, RunDirectory
from remuda.runs.display import INTERVAL, html_table, plus_minus, text_table
from remuda.runs.film import trained_bindings
from remuda.runs.frozen import load_frozen
from remuda.runs.limits import check_scores
from remuda.runs.recorder import standard_error
from remuda.runs.settings import complete, make_plan, spec_of
from remuda.runs.zoo import is_zoo_name

BATCHED = 64  # episodes played at once
CHANGEABLE = ("seed", "n_workers", "worlds")
"""Settings that may differ from training when a run is evaluated."""
MAX_ROWS = 20
"""Agents whose scores a text shows."""


def evaluate(
    target: RunDirectory | Path | AnyGame,
    episodes: int = 100,
    exploration: float | None = 0.0,
    checkpoint: str | None = None,
    *,
    sampled: Collection[str] = (),
    game: AnyGame | None = None,
    trust: bool = False,
    **settings: Any,
) -> Scores:
    """Score a trained herd, or players named by `learner` and `learners`, on test episodes.

    `target` is a run, its directory, or a game. `exploration` is the share of random actions: 0 is greedy, and None
    draws actions as in training; groups named in `sampled` draw them in any case. `checkpoint` is the name of one, or
    "best"; the default is the newest. `settings` of a run may change its seed, worlds, n_workers and options of its
    game. `game` gives the game of a run again that was defined in another Python session. `trust` follows names of code
    in runs that somebody else made.
    """
    if episodes < 1:
        raise ConfigError(f"episodes={episodes} should be at least 1")
    if exploration is not None and not 0 <= exploration <= 1:
        raise ConfigError(f"exploration={exploration} should be a share from 0 to 1, or None to draw as in training")
    setup = EvaluationSetup.of(target, settings, checkpoint, game, trust)
    bindings = _sampled(setup.bindings, setup.spec, sampled)
    return evaluate_policies(setup.plan, setup.spec, bindings, episodes, exploration)


def _sampled(bindings: Sequence[PolicyBinding], spec: GameSpec, names: Collection[str]) -> list[PolicyBinding]:
    """The bindings, of which those of the named groups draw their actions as in training."""
    groups = [group.name for group in spec.groups]
    for name in names:
        if name not in groups:
            raise UnknownName("group", name, groups)
    return [replace(binding, sampled=groups[binding.group] in names) for binding in bindings]


@dataclass(frozen=True, repr=False)
class Scores:
    """Returns and game metrics of every agent in every episode."""

    returns: NDArray[np.float64]  # (episodes, agents)
    metrics: dict[str, NDArray[np.float64]]  # (episodes, agents), nan where a group has no such metric

    def summary(self) -> dict[str, Any]:
        """Means with half the width of their 95 % interval."""
        total, paid = self.returns.sum(axis=1), self._paid
        return {
            "episodes": len(self.returns),
            "mean_return": self.returns.mean(axis=0).tolist(),
            "mean_return_ci95": _half_width(self.returns),
            "total_return": float(total.mean()),
            "total_return_ci95": _half_width(total),
            **(
                {}
                if paid is None
                else {"total_game_return": float(paid.mean()), "total_game_return_ci95": _half_width(paid)}
            ),
            "metrics": {name: values.mean(axis=0).tolist() for name, values in self.metrics.items()},
            "metrics_ci95": {name: _half_width(values) for name, values in self.metrics.items()},
        }

    @property
    def _paid(self) -> NDArray[np.float64] | None:
        """What the game pays the whole herd, (episodes,), where agents receive something else."""
        return self.metrics[GAME_RETURN].sum(axis=1) if GAME_RETURN in self.metrics else None

    def headline(self) -> str:
        """The return of the whole herd, in one line."""
        found = self.summary()
        line = (
            f"total return {found['total_return']:.2f} {plus_minus(found['total_return_ci95'])} (95 %) "
            f"over {len(self.returns)} episodes"
        )
        if self._paid is None:
            return line
        paid = f"{found['total_game_return']:.2f} {plus_minus(found['total_game_return_ci95'])}"
        return f"{line}, after reward.*; the game pays {paid}"

    def rows(self) -> list[list[str]]:
        """A table for people: a header, and a row for each agent."""
        found = self.summary()
        means, widths = found["metrics"], found["metrics_ci95"]
        return [
            ["agent", "return", "95 %", *means],
            *(
                [
                    str(agent),
                    f"{found['mean_return'][agent]:.2f}",
                    plus_minus(found["mean_return_ci95"][agent]),
                    *(f"{means[name][agent]:.2f} {plus_minus(widths[name][agent])}" for name in means),
                ]
                for agent in range(self.returns.shape[1])
            ),
        ]

    def __repr__(self) -> str:
        rows = self.rows()
        hidden = len(rows) - 1 - MAX_ROWS
        more = f"\n… and {hidden} more agents" if hidden > 0 else ""
        return f"{self.headline()}\n{text_table(rows[: MAX_ROWS + 1])}{more}"

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.headline())}</p>{html_table(self.rows())}"


def _half_width(values: NDArray[np.float64]) -> Any:
    width = INTERVAL * standard_error(values)
    return [None if math.isnan(w) else w for w in width.tolist()] if width.ndim else float(width)


def is_run(target: Any) -> bool:
    """Whether the target is a run or its directory, not a game."""
    if isinstance(target, RunDirectory) or is_zoo_name(target):
        return True
    return isinstance(target, str | Path) and is_file(Path(target) / CONFIG)


def is_path(target: Any) -> bool:
    """Whether the target can only be meant as a directory: there is one, and no game has its name."""
    if not isinstance(target, str) or ":" in target or target in SHIPPED or target in installed_games():
        return isinstance(target, Path)
    return is_folder(Path(target)) or ("/" in target and is_folder(Path(target).parent))


@dataclass(frozen=True)
class EvaluationSetup:
    """A plan and who plays it: the trained herd of a run, or players named by settings."""

    plan: Plan
    spec: GameSpec
    bindings: list[PolicyBinding]
    run: RunDirectory | None
    checkpoint: str | None  # of the run

    @classmethod
    def of(
        cls,
        target: RunDirectory | Path | AnyGame,
        settings: Mapping[str, Any],
        checkpoint: str | None = None,
        game: AnyGame | None = None,
        trust: bool = False,
    ) -> EvaluationSetup:
        """Of a run or its directory, or of a game with `learners=…`."""
        if is_run(target) or is_path(target):
            return cls._of_run(RunDirectory.of(target, game, trust), settings, checkpoint)
        if game is not None or checkpoint is not None:
            raise ConfigError(f"{target} is not a run: game and checkpoint are for runs, leave them out")
        return cls._of_players({"game": target, **settings}, trust)

    @classmethod
    def _of_run(cls, run: RunDirectory, settings: Mapping[str, Any], checkpoint: str | None) -> EvaluationSetup:
        plan = _changed(run, settings)
        checkpoint_name = run.checkpoint(checkpoint, only="policy").name
        return cls(plan, spec_of(plan), trained_bindings(run, checkpoint), run, checkpoint_name)

    @classmethod
    def _of_players(cls, settings: Mapping[str, Any], trust: bool) -> EvaluationSetup:
        plan = make_plan(settings)
        spec = spec_of(plan)
        parts = load_frozen(assign(plan, spec), spec, trust)
        if any(part.learns for part in parts):
            raise ConfigError(
                "only trained or scripted players can play here: give learners={0: frozen:RUN/0, …} or learner=random"
            )
        return cls(plan, spec, [bind_policy(part, plan, spec, "cpu") for part in parts], None, None)

    @property
    def players(self) -> list[str]:
        """The kind of each agent's player: a learner, a scripted player or frozen:RUN/agent."""
        return [part.player for part in assign(self.plan, self.spec) for _ in range(part.agents)]


def _changed(run: RunDirectory, settings: Mapping[str, Any]) -> Plan:
    """The run's plan with changed settings, or with other options of its game that the trained agents fit."""
    options = find_game(run.plan.game).options
    words = options.resolve_aliases(settings)
    own = {name: words.pop(name) for name in [*words] if name in options.model_fields or name == REWARD}
    for name in words:
        if name not in CHANGEABLE:
            raise ConfigError(
                f"{name} cannot be changed for a trained herd: only {', '.join(CHANGEABLE)} and options of its game"
            )
    plan = complete(run.changed({**words, "options": {**run.plan.options, **own}}))
    before, after = (
        [(group.size, group.obs_shape, group.actions, group.action_space) for group in spec.groups]
        for spec in (run.spec, spec_of(plan))
    )
    if before != after:
        raise ConfigError(
            f"{', '.join(own)}: the herd does not fit this game; it was trained for {before}, not {after}"
        )
    return plan


def evaluate_policies(
    plan: Plan, spec: GameSpec, bindings: Sequence[PolicyBinding], episodes: int, exploration: float | None = 0.0
) -> Scores:
    """Play test episodes 0 … episodes-1 of the plan's seed with these policies."""
    check_scores(spec, episodes)
    parts = [_scores(spec, fragments) for fragments in play_test_episodes(plan, spec, bindings, episodes, exploration)]
    metrics = {name: np.concatenate([part.metrics[name] for part in parts]) for name in parts[0].metrics}
    return Scores(np.concatenate([part.returns for part in parts]), metrics)


def play_test_episodes(
    plan: Plan, spec: GameSpec, bindings: Sequence[PolicyBinding], episodes: int, exploration: float | None = 0.0
) -> Iterator[Sequence[Fragment]]:
    """Play test episodes 0 … episodes-1 of the plan's seed: some at once, a fragment per group, to be read at once."""
    collectors = InlineCollectors(
        entry=find_game(plan.game),
        spec=spec,
        options=plan.options,
        bindings=bindings,
        config=RolloutConfig.of(plan),
        threads=plan.n_workers or cores(),
        stop=lambda: None,
    )
    with one_thread_each():
        collectors.start()
        try:
            for first in range(0, episodes, BATCHED):
                numbers = tuple(range(first, min(first + BATCHED, episodes)))
                collectors.send(Task(numbers, Purpose.TEST, exploration))
                delivery = collectors.recv(timeout_s=math.inf)
                if delivery.failure is not None:
                    raise GameError(f"{delivery.failure.message}\n{delivery.failure.traceback}")
                yield delivery.fragments
        finally:
            collectors.close()


def _scores(spec: GameSpec, fragments: Sequence[Fragment]) -> Scores:
    returns = np.concatenate([fragment.returns for fragment in fragments], axis=1)
    metrics: dict[str, NDArray[np.float64]] = {}
    for g, group in enumerate(spec.groups):
        agents = slice(spec.first_agent(g), spec.first_agent(g) + group.size)
        for i, name in enumerate(group.metrics):
            column = metrics.setdefault(name, np.full(returns.shape, np.nan))
            column[:, agents] = fragments[g].metrics[:, :, i]
    return Scores(returns, metrics)
