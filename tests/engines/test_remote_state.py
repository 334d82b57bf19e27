"""Saving learners that are actors: each owner writes its file, unless it does not see the folder."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from remuda.engines.trainers.ray import actor, remote_state
from remuda.engines.trainers.ray.actor import LearnerActor, LearnerJob, SnapshotFacts
from remuda.engines.trainers.ray.remote_state import RemoteState
from remuda.learners.herd import assign
from remuda.runs.settings import make_plan, spec_of

pytest.importorskip("ray")
HERD: dict[str, Any] = {"game": "treasurehunt", "learner": "ppo", "layers": [8], "agents": 6, "height": 5, "width": 5}


class LocalActor:
    """A learner actor in this process, called as if this were its handle."""

    def __init__(self, first: int, sees_the_folder: bool = True) -> None:
        plan = make_plan({**HERD, "device": "cpu"})
        spec = spec_of(plan)
        slices = [(0, first, first + 2)]
        job = LearnerJob("learner", [], plan, assign(plan, spec), spec, "cpu", {}, slices, 1)
        self.calls: list[str] = []
        self._sees = sees_the_folder
        self._actor = LearnerActor(job)
        self.facts: SnapshotFacts = self._actor.snapshot()
        self.arrays = dict(self._actor.read_snapshot())

    def __getattr__(self, method: str) -> Any:
        def call(*args: Any) -> Any:
            self.calls.append(method)
            if method == "write_snapshot" and not self._sees:
                args = (f"{args[0]}-of-another-machine", *args[1:])
            return getattr(self._actor, method)(*args)

        return SimpleNamespace(remote=call, options=lambda **options: SimpleNamespace(remote=call))


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an actor returns is there at once."""
    ray = SimpleNamespace(get=lambda value, timeout: value, exceptions=SimpleNamespace(RayError=RuntimeError))
    monkeypatch.setattr(remote_state, "require_ray", lambda: ray)


def test_owners_that_do_not_see_the_folder_send_what_they_have(tmp_path: Path) -> None:
    actors = [LocalActor(0), LocalActor(2, sees_the_folder=False), LocalActor(4)]
    state = RemoteState(4, actors, [own.facts for own in actors], 60.0)
    assert set(state) == set(actors[0].arrays)
    for name, array in state.items():
        np.testing.assert_array_equal(array, np.concatenate([own.arrays[name] for own in actors]))
    for own in actors:
        own.calls.clear()
    sums = state.write(tmp_path, "learner")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(sums), "nothing else is left there"
    for (name, digest), owner in zip(sums.items(), actors, strict=True):
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == digest
        written = load_file(tmp_path / name)
        assert {key: own.tobytes() for key, own in written.items()} == {
            key: own.tobytes() for key, own in owner.arrays.items()
        }
    wrote, streamed = ["write_snapshot", "drop_snapshot"], ["write_snapshot", "read_snapshot", "drop_snapshot"]
    assert [own.calls for own in actors] == [wrote, streamed, wrote]
    assert state.written


def test_a_full_disk_of_an_owner_is_an_error_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(actor, "save_file", no_space)
    own = LocalActor(0)
    state = RemoteState(4, [own], [own.facts], 60.0)
    with pytest.raises(OSError, match="No space left"):
        state.write(tmp_path, "learner")
    assert not state.written


def test_a_learner_that_is_lost_after_its_snapshot_is_asked_again() -> None:
    """While the snapshot of another one is waited for: its replacement has none, and would write an empty file."""
    handles: list[Any] = [SimpleNamespace(index=index, actor=f"first {index}") for index in range(3)]
    asked: list[str] = []

    def take(handle: Any) -> Any:
        asked.append(handle.actor)
        if handle.actor == "first 2":
            handles[0].actor = "second 0"
        return handle.actor, SnapshotFacts([], None)

    actors = [actor for actor, _ in remote_state.take_snapshots(handles, take)]
    assert asked == ["first 0", "first 1", "first 2", "second 0"]
    assert actors == ["second 0", "first 1", "first 2"]
