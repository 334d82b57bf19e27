"""Saving learners that are actors: each owner writes its file, unless it does not see the folder."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from remuda.engines.trainers.ray.actor import LearnerActor, SnapshotFacts
from remuda.engines.trainers.ray.remote_state import RemoteState

pytest.importorskip("ray")


class LocalActor:
    """The methods of a learner actor, called in this process as if it were a handle."""

    def __init__(self, first: int, sees_the_folder: bool) -> None:
        self.calls: list[str] = []
        self._sees = sees_the_folder
        self._actor = LearnerActor.__new__(LearnerActor)
        self._actor._snapshot = {
            "0/weights": np.arange(first, first + 6, dtype=np.float32).reshape(2, 3),
            "0/steps": np.full(2, first, np.int64),
        }

    @property
    def facts(self) -> SnapshotFacts:
        return SnapshotFacts(list(self._actor._snapshot), None)

    def __getattr__(self, method: str) -> Any:
        def call(*args: Any) -> Any:
            self.calls.append(method)
            if method == "write_snapshot" and not self._sees:
                args = (f"{args[0]}-of-another-machine", *args[1:])
            return getattr(self._actor, method)(*args)

        return SimpleNamespace(remote=call, options=lambda **options: SimpleNamespace(remote=call))


def test_owners_that_do_not_see_the_folder_send_what_they_have(tmp_path: Path) -> None:
    actors = [LocalActor(0, True), LocalActor(10, False), LocalActor(20, True)]
    snapshots = [dict(actor._actor._snapshot) for actor in actors]
    state = RemoteState(4, actors, [actor.facts for actor in actors], 60.0)
    state._ray = SimpleNamespace(get=lambda value, timeout: value, exceptions=SimpleNamespace(RayError=RuntimeError))
    np.testing.assert_array_equal(state["0/steps"], [0, 0, 10, 10, 20, 20])
    for actor in actors:
        actor.calls.clear()
    sums = state.write(tmp_path, "learner")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(sums), "nothing else is left there"
    for (name, digest), snapshot in zip(sums.items(), snapshots, strict=True):
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == digest
        written = load_file(tmp_path / name)
        assert {key: own.tobytes() for key, own in written.items()} == {
            key: own.tobytes() for key, own in snapshot.items()
        }
    own, streamed = ["write_snapshot", "drop_snapshot"], ["write_snapshot", "read_snapshot", "drop_snapshot"]
    assert [actor.calls for actor in actors] == [own, streamed, own]
    assert state.written


def test_a_full_disk_of_an_owner_is_an_error_here(tmp_path: Path) -> None:
    actor = LocalActor(0, True)
    actor._actor.write_snapshot = lambda *args: OSError(28, "No space left on device")  # type: ignore[method-assign]
    state = RemoteState(4, [actor], [actor.facts], 60.0)
    state._ray = SimpleNamespace(get=lambda value, timeout: value, exceptions=SimpleNamespace(RayError=RuntimeError))
    with pytest.raises(OSError, match="No space left"):
        state.write(tmp_path, "learner")
    assert not state.written
