"""The state of training: everything that is saved and restored, in one place.

Each component gives and takes its own part: the loop, the collectors, the trainers, the failure log, the recorder.
Numbers and text go into the checkpoint's index (JSON), arrays into safetensors files beside it:

    learner.safetensors   weights, optimisers, replay buffers, statistics: all that the next update depends on
    policy.safetensors    weights by agent and name, for evaluation, export and frozen players
    acting.safetensors    weights that act now, where they are older than the newest (lag 1)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from remuda.core.errors import CheckpointError, ConfigError, LearnerError, first_line
from remuda.core.plan import Plan
from remuda.core.saved_state import SavedState
from remuda.engines.context import SavedLearners
from remuda.engines.interfaces import CollectorCounters, StateSlices, TrainerCounters, Update
from remuda.engines.loop import Loop, LoopState
from remuda.runs import checkpoint
from remuda.runs.failure_log import FailureLog, FailureState
from remuda.runs.recorder import ProcessTotals, Recorder, RecorderState

DECIDING = (
    "game", "options", "worlds", "seed", "learner", "learners", "learner_options", "episodes_per_update",
    "updates_per_episode", "lag", "parallel_actions", "precision",
)  # fmt: skip
"""Settings that decide the result; they must be the same when a run goes on. Engine and length may change."""
UNFIT = (KeyError, ValueError, TypeError, IndexError, RuntimeError)
"""What learners raise when they are given the state of other learners."""


def plan_identity(plan: Plan) -> str:
    """The settings that decide the result, as JSON."""
    settings = plan.model_dump(mode="json")
    return json.dumps({name: settings[name] for name in DECIDING}, sort_keys=True)


class TrainState(SavedState):
    """The numbers and texts of a checkpoint; a new version of its format gets another `checkpoint.FORMAT`."""

    plan: str  # see `plan_identity`
    players: list[str]
    agents: int = Field(ge=1)
    episodes: int = Field(ge=0)
    loop: LoopState
    collectors: CollectorCounters
    trainers: TrainerCounters
    failures: FailureState
    recorder: RecorderState

    @classmethod
    def capture(
        cls, loop: Loop, failure_log: FailureLog, recorder: Recorder, processes: dict[str, ProcessTotals]
    ) -> tuple[TrainState, dict[str, checkpoint.Arrays]]:
        """The state now, and its arrays by file, in memory of their own."""
        arrays: dict[str, checkpoint.Arrays] = {
            "learner": loop.trainers.state(),
            "policy": recorder.named(loop.trainers.rows()),
        }
        _refuse_values_that_are_not_finite(arrays, recorder)
        acting = loop.published.rows
        if loop.published.version != loop.trainers.version and acting is not None:
            arrays["acting"] = {str(part): rows for part, rows in acting.items()}
        state = cls(
            plan=plan_identity(loop.plan),
            players=[part.player for part in recorder.parts],
            agents=recorder.spec.agents,
            episodes=loop.plan.episodes_after(loop.rounds),
            loop=loop.state(),
            collectors=loop.collectors.counters(),
            trainers=loop.trainers.counters(),
            failures=failure_log.state(),
            recorder=recorder.state(processes),
        )
        return state, arrays

    @classmethod
    def of(cls, path: Path) -> TrainState:
        """The state in a checkpoint, of whatever plan."""
        index = checkpoint.read_index(path)
        index = {name: value for name, value in index.items() if name not in ("format", "files")}
        try:
            return cls.model_validate_json(json.dumps(index))
        except (ValidationError, ValueError) as error:
            where = ".".join(map(str, error.errors()[0]["loc"])) if isinstance(error, ValidationError) else "index"
            raise CheckpointError(f"checkpoint {path} cannot be resumed: its {where} is missing or wrong") from None

    @classmethod
    def read(cls, path: Path, plan: Plan) -> TrainState:
        """The state in a checkpoint, if it can be one of this plan."""
        state = cls.of(path)
        state._check_plan(path, plan)
        loop = state.loop
        possible = loop.settled <= loop.rounds <= plan.rounds and loop.published <= loop.rounds
        if not possible or state.episodes != plan.episodes_after(loop.rounds):
            raise CheckpointError(f"checkpoint {path} belongs to another plan: its counters do not fit")
        return state

    def _check_plan(self, path: Path, plan: Plan) -> None:
        """Refuse a checkpoint that was trained with other settings than the plan has."""
        try:
            before, now = json.loads(self.plan), json.loads(plan_identity(plan))
            different = next((name, before.get(name), now[name]) for name in DECIDING if before.get(name) != now[name])
        except StopIteration:
            return
        except (ValueError, RecursionError, AttributeError):
            raise CheckpointError(f"checkpoint {path} cannot be resumed: its plan is missing or wrong") from None
        name, old, new = different
        raise CheckpointError(
            f"checkpoint {path} belongs to another plan: it was trained with {_named(name, old, new)}; "
            "put that back, or train a new run"
        )

    def restore(self, path: Path, loop: Loop, failure_log: FailureLog, recorder: Recorder) -> None:
        """Put every component where the checkpoint at `path` says it was."""
        players = [part.player for part in recorder.parts]
        if (self.players, self.agents) != (players, recorder.spec.agents):
            raise CheckpointError(f"checkpoint {path} belongs to another herd: {self.players}")
        try:
            loop.trainers.restore(self.loop.rounds, checkpoint.read(path, "learner"))
            rows = loop.trainers.rows()
            if self.loop.published != self.loop.rounds:
                acting = {int(part): array for part, array in checkpoint.read(path, "acting").items()}
                if {part: a.shape for part, a in acting.items()} != {part: a.shape for part, a in rows.items()}:
                    raise CheckpointError("its acting weights have another shape")
                rows = acting
        except CheckpointError as error:
            raise CheckpointError(f"checkpoint {path} does not fit: {error}") from None
        except UNFIT as error:
            raise CheckpointError(f"checkpoint {path} does not fit this plan: {error}") from None
        loop.restore(self.loop, Update(self.loop.published, rows))
        loop.collectors.restore_counters(self.collectors)
        loop.trainers.restore_counters(self.trainers)
        failure_log.restore(self.failures)
        recorder.restore(self.recorder, loop.trainers.lags)


def _refuse_values_that_are_not_finite(arrays: Mapping[str, checkpoint.Arrays], recorder: Recorder) -> None:
    """Such a checkpoint could never be used again; the last good one is kept instead."""
    learners = arrays["learner"]
    if isinstance(learners, StateSlices):
        if wrong := learners.not_finite():
            raise _not_finite(*wrong)
        return
    for name, array in learners.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            part, _, what = name.partition("/")
            rows = ~np.isfinite(array.reshape(len(array), -1)).all(axis=1)
            agent = recorder.parts[int(part)].herd_first + int(np.flatnonzero(rows)[0])
            raise _not_finite(agent, what)


def _not_finite(agent: int, what: str) -> LearnerError:
    return LearnerError(
        f"agent {agent} has {what} that are not finite: nothing was saved, the last checkpoint is kept; "
        "lower its learning rate (lr) or the size of rewards, and `remuda resume` or train anew"
    )


def newest_learners(folder: Path) -> SavedLearners:
    """The learners of the newest intact checkpoint in a directory; 0 rounds and nothing before there is one."""
    path = checkpoint.newest(folder)
    if path is None:
        return SavedLearners()
    files = checkpoint.read_index(path)["files"]
    acting = None
    if "acting.safetensors" in files:
        acting = {int(part): rows for part, rows in checkpoint.read(path, "acting").items()}
    return SavedLearners(int(checkpoint.read_index(path)["loop"]["rounds"]), checkpoint.read(path, "learner"), acting)


def _named(name: str, old: Any, new: Any) -> str:
    """The setting that differs, as `name=value, not value`; of a mapping the first entry that differs."""
    while isinstance(old, dict) and isinstance(new, dict):
        inner = next(key for key in sorted({*old, *new}) if old.get(key) != new.get(key))
        name, old, new = inner, old.get(inner), new.get(inner)
    return f"{name}={old}, not {new}"


def warm_start(loop: Loop, state: Mapping[str, NDArray[Any]]) -> None:
    """Start with the learners of another run."""
    try:
        loop.trainers.restore(0, state)
    except (CheckpointError, *UNFIT) as error:
        raise ConfigError(f"warm_start={loop.plan.warm_start} does not fit this herd: {first_line(error)}") from None
    loop.restore(LoopState(), Update(0, loop.trainers.rows()))
