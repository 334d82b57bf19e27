"""Putting players to the test: greedy by default, on episodes of their own, with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.errors import ConfigError, GameError
from remuda.core.fragment import Fragment, Purpose
from remuda.core.game import GameSpec
from remuda.core.machine import cores
from remuda.core.plan import Plan
from remuda.core.policy import PolicyBinding
from remuda.core.task import Task
from remuda.core.threads import one_thread_each
from remuda.engines.collectors.inline import InlineCollectors
from remuda.games.registry import find_game
from remuda.learners.herd import assign, bind_policy
from remuda.rollout.config import RolloutConfig
from remuda.runs.film import trained_bindings
from remuda.runs.frozen import load_frozen
from remuda.runs.recorder import standard_error
from remuda.runs.run import CONFIG, Run
from remuda.runs.settings import complete, make_plan, spec_of

INTERVAL = 1.96  # standard errors, for 95 %
TOGETHER = 64  # episodes played at once
CHANGEABLE = ("seed", "n_workers", "worlds")
"""What may be another than in training when a run is evaluated."""


@dataclass(frozen=True)
class Scores:
    """Returns and game metrics of every agent in every episode."""

    returns: NDArray[np.float64]  # (episodes, agents)
    metrics: dict[str, NDArray[np.float64]]  # (episodes, agents), nan where a group has no such metric

    def summary(self) -> dict[str, Any]:
        """Means with half the width of their 95 % interval."""
        total = self.returns.sum(axis=1)
        return {
            "episodes": len(self.returns),
            "mean_return": self.returns.mean(axis=0).tolist(),
            "mean_return_ci95": _half_width(self.returns),
            "total_return": float(total.mean()),
            "total_return_ci95": _half_width(total),
            "metrics": {name: values.mean(axis=0).tolist() for name, values in self.metrics.items()},
            "metrics_ci95": {name: _half_width(values) for name, values in self.metrics.items()},
        }


def _half_width(values: NDArray[np.float64]) -> Any:
    width = INTERVAL * standard_error(values)
    return [None if math.isnan(w) else w for w in width] if width.ndim else float(width)


def is_run(target: str | Path) -> bool:
    """Whether somebody means a run directory, not a game."""
    return (Path(target) / CONFIG).is_file()


@dataclass(frozen=True)
class EvaluationSetup:
    """A plan and who plays it: the trained herd of a run, or players named by settings."""

    plan: Plan
    spec: GameSpec
    bindings: list[PolicyBinding]
    run: Run | None
    checkpoint: str | None  # of the run

    @classmethod
    def of(cls, target: str | Path, settings: Mapping[str, Any], checkpoint: str | None = None) -> EvaluationSetup:
        """Of a run directory, or of a game with `learners=…`."""
        if not is_run(target):
            return cls._invited({"game": str(target), **settings})
        run = Run(target)
        plan = _changed(run, settings)
        checkpoint_name = run.checkpoint(checkpoint, only="policy").name
        return cls(plan, spec_of(plan), trained_bindings(run, checkpoint), run, checkpoint_name)

    @classmethod
    def _invited(cls, settings: Mapping[str, Any]) -> EvaluationSetup:
        plan = make_plan(settings)
        spec = spec_of(plan)
        parts = load_frozen(assign(plan, spec), spec)
        if any(part.learns for part in parts):
            raise ConfigError(
                "only trained or scripted players can play here: give learners={0: frozen:RUN/0, …} or learner=random"
            )
        return cls(plan, spec, [bind_policy(part, plan, spec, "cpu") for part in parts], None, None)

    @property
    def players(self) -> list[str]:
        """The kind of each agent's player: a learner, a scripted player or frozen:RUN/agent."""
        return [part.player for part in assign(self.plan, self.spec) for _ in range(part.agents)]


def _changed(run: Run, settings: Mapping[str, Any]) -> Plan:
    """The run's plan in another place, or with other options of its game that suit the same agents."""
    options = find_game(run.plan.game).options
    words = options.resolve_aliases(settings)
    own = {name: words.pop(name) for name in [*words] if name in options.model_fields}
    for name in words:
        if name not in CHANGEABLE:
            raise ConfigError(
                f"{name} cannot be changed for a trained herd: only {', '.join(CHANGEABLE)} and options of its game"
            )
    plan = complete(run.changed({**words, "options": {**run.plan.options, **own}}))
    before, after = (
        [(group.size, group.obs_shape, group.actions) for group in spec.groups] for spec in (run.spec, spec_of(plan))
    )
    if before != after:
        raise ConfigError(
            f"{', '.join(own)}: the herd does not fit this game; it was trained for {before}, not {after}"
        )
    return plan


def evaluate(
    plan: Plan, spec: GameSpec, bindings: Sequence[PolicyBinding], episodes: int, exploration: float | None = 0.0
) -> Scores:
    """Play test episodes 0 … episodes-1 of the plan's seed with these players; None: they choose as in training."""
    collectors = InlineCollectors(
        entry=find_game(plan.game),
        spec=spec,
        options=plan.options,
        bindings=bindings,
        config=RolloutConfig.of(plan),
        threads=plan.n_workers or cores(),
        stop=lambda: None,
    )
    parts: list[Scores] = []
    with one_thread_each():
        collectors.start()
        try:
            for first in range(0, episodes, TOGETHER):
                numbers = tuple(range(first, min(first + TOGETHER, episodes)))
                collectors.send(Task(numbers, Purpose.TEST, exploration))
                delivery = collectors.recv(timeout_s=math.inf)
                if delivery.failure is not None:
                    raise GameError(f"{delivery.failure.message}\n{delivery.failure.traceback}")
                parts.append(_scores(spec, delivery.fragments))
        finally:
            collectors.close()
    metrics = {name: np.concatenate([part.metrics[name] for part in parts]) for name in parts[0].metrics}
    return Scores(np.concatenate([part.returns for part in parts]), metrics)


def _scores(spec: GameSpec, fragments: Sequence[Fragment]) -> Scores:
    returns = np.concatenate([fragment.returns for fragment in fragments], axis=1)
    metrics: dict[str, NDArray[np.float64]] = {}
    for g, group in enumerate(spec.groups):
        agents = slice(spec.first_agent(g), spec.first_agent(g) + group.size)
        for i, name in enumerate(group.metrics):
            column = metrics.setdefault(name, np.full(returns.shape, np.nan))
            column[:, agents] = fragments[g].metrics[:, :, i]
    return Scores(returns, metrics)
