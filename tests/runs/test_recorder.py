"""What the recorder tells when learners elsewhere are lost in the middle of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from remuda.core.fragment import Origin, Purpose
from remuda.engines.interfaces import LostRounds, Update
from remuda.engines.summary import EpisodeSummary
from remuda.learners.herd import assign, make_learner
from remuda.runs.callbacks.base import Callback, Row, Training
from remuda.runs.recorder import Recorder
from remuda.runs.settings import make_plan, spec_of

ROUND = 3


class Told(Callback):
    """Counts evaluations."""

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def evaluated(self, training: Training, rows: Sequence[Row], scores: Row) -> None:
        self.rounds.append(rows[0]["round"])


class Player(Told):
    """Asks for the newest weights, and takes an error for an accident of its own if it is forgiving."""

    def __init__(self, forgiving: bool = False) -> None:
        super().__init__()
        self.forgiving = forgiving

    def evaluated(self, training: Training, rows: Sequence[Row], scores: Row) -> None:
        super().evaluated(training, rows, scores)
        with suppress(*[Exception] * self.forgiving):
            training.policies()


class Fetched(Mapping[int, NDArray[np.float32]]):
    """Weights of a learner elsewhere, which is lost at the first attempt to fetch them."""

    def __init__(self, rows: Mapping[int, NDArray[np.float32]]) -> None:
        self.rows, self.attempts = rows, 0

    def __getitem__(self, part: int) -> NDArray[np.float32]:
        self.attempts += 1
        if self.attempts == 1:
            raise LostRounds("a learner is gone")
        return self.rows[part]

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


@pytest.fixture
def herd(tiny: dict[str, Any]) -> SimpleNamespace:
    plan = make_plan({"game": "treasurehunt", **tiny})
    spec = spec_of(plan)
    (part,) = parts = assign(plan, spec)
    rows = {0: make_learner(part, plan, spec, "cpu", (0, part.agents)).rows()}
    context = SimpleNamespace(plan=plan, spec=spec, parts=parts, device="cpu")
    (group,) = spec.groups
    origin = Origin(0, np.arange(2), np.arange(2), 0, Purpose.EVALUATE)
    zeros = np.zeros((2, group.size))
    summary = EpisodeSummary(
        origin, zeros, np.zeros((*zeros.shape, len(group.metrics)), np.float32), np.ones(2, np.int64), 0
    )
    return SimpleNamespace(context=context, rows=rows, results=[[summary]])


def recorder_of(herd: SimpleNamespace, folder: Path, callbacks: Sequence[Callback]) -> Recorder:
    run = cast(Any, SimpleNamespace(path=folder))
    recorder = Recorder(cast(Any, herd.context), run, callbacks, lambda reason: None, lambda loop: ({}, {}))
    recorder.start(0, 0)
    return recorder


def test_best_weights_that_are_lost_are_kept_when_the_evaluation_is_played_again(
    herd: SimpleNamespace, tmp_path: Path
) -> None:
    told = Told()
    recorder, acting = recorder_of(herd, tmp_path, [told]), Update(ROUND, Fetched(herd.rows))
    with pytest.raises(LostRounds):
        recorder.evaluated(ROUND, acting, herd.results)
    assert told.rounds == []
    assert recorder.best is None
    recorder.evaluated(ROUND, acting, herd.results)
    recorder.close()
    assert told.rounds == [ROUND]
    assert (tmp_path / "best").is_dir()


@pytest.mark.parametrize("forgiving", [False, True])
def test_every_callback_is_told_of_an_evaluation_once_though_one_of_them_meets_the_loss(
    forgiving: bool, herd: SimpleNamespace, tmp_path: Path
) -> None:
    callbacks = [Told(), Player(forgiving), Told()]
    recorder = recorder_of(herd, tmp_path, callbacks)
    newest = Fetched(herd.rows)
    recorder._newest = lambda: newest
    with pytest.raises(LostRounds):
        recorder.evaluated(ROUND, Update(ROUND, herd.rows), herd.results)
    recorder.evaluated(ROUND, Update(ROUND, herd.rows), herd.results)  # played again after the learners went back
    recorder.close()
    assert [own.rounds for own in callbacks] == [[ROUND]] * 3
