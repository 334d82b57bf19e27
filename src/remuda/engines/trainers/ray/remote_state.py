"""The state of learners that are actors: a snapshot in the memory of each, written by its owner or streamed here."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from remuda.core.errors import first_line
from remuda.engines.collectors.ray.cluster import SAVE_GROUP, require_ray
from remuda.engines.interfaces import LostRounds, StateSlices
from remuda.engines.trainers.ray.actor import SnapshotFacts
from remuda.engines.trainers.ray.learner_pool import LearnerHandle

Snapshot = tuple[Any, SnapshotFacts]
"""Which actor has a snapshot, and what is in it."""


def take_snapshots(handles: Sequence[LearnerHandle], take: Callable[[LearnerHandle], Snapshot]) -> list[Snapshot]:
    """The snapshots of all learners.

    While one is waited for another may be lost. Its replacement has no snapshot, and is asked again.
    """
    taken: dict[int, Snapshot] = {}  # by learner
    while missing := [own for own in handles if taken.get(own.index, (None,))[0] is not own.actor]:
        taken[missing[0].index] = take(missing[0])
    return [taken[handle.index] for handle in handles]


class RemoteState(StateSlices):
    """The snapshots of all learners, in the order of the herd."""

    def __init__(self, version: int, actors: Sequence[Any], facts: Sequence[SnapshotFacts], limit_s: float) -> None:
        self.version = version
        self.written = False  # whether all of it is on disk
        self.actors, self._facts, self._limit_s = actors, facts, limit_s
        self._ray: Any = require_ray()

    def write(self, folder: Path, stem: str) -> dict[str, str]:
        """Have each owner write its file, all at once; what owners elsewhere have comes here one after the other."""
        token = folder / f".{os.getpid()}-{time.time_ns():x}"
        token.touch()
        names = [f"{stem}-{index:04d}.safetensors" for index in range(len(self.actors))]
        written = [
            actor.write_snapshot.options(concurrency_group=SAVE_GROUP).remote(str(folder), name, token.name)
            for actor, name in zip(self.actors, names, strict=True)
        ]
        sums = {}
        for actor, name, reference in zip(self.actors, names, written, strict=True):
            digest = self._get(reference)
            if isinstance(digest, OSError):
                raise digest
            sums[name] = digest or self._stream(actor, folder / name)
        token.unlink()
        for actor in self.actors:
            actor.drop_snapshot.remote()
        self.written = True
        return sums

    def _stream(self, actor: Any, path: Path) -> str:
        """Fetch one snapshot and write it here; only one is in this process's memory at a time."""
        save_file(self._get(actor.read_snapshot.remote()), path)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        return digest

    def _get(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference, timeout=self._limit_s)
        except self._ray.exceptions.RayError as error:
            raise LostRounds(f"a learner was lost while its state was saved ({first_line(error)})") from None

    def not_finite(self) -> tuple[int, str] | None:
        """An agent with an array that is not finite, and the array's name."""
        return next((facts.not_finite for facts in self._facts if facts.not_finite is not None), None)

    def __getitem__(self, name: str) -> NDArray[Any]:
        having = [actor for actor, facts in zip(self.actors, self._facts, strict=True) if name in facts.names]
        if not having:
            raise KeyError(name)
        return np.concatenate([self._get(actor.read_snapshot.remote(name))[name] for actor in having])

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for facts in self._facts for name in facts.names))

    def __len__(self) -> int:
        return len(list(iter(self)))
