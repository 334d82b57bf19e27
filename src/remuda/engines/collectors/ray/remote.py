"""Values that stay on the nodes that made them; this process has references, and fetches what it is asked to read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from remuda.core.fragment import Fragment

Cut = tuple[int, int, int]
"""Index of a group, and the range first … last-1 of its agents."""
RowSlice = tuple[int, int, NDArray[np.float32]]
"""Index of a part of the herd, its first agent here, and the rows from there on, (agents, columns)."""
FETCH_LIMIT_S = 10.0
"""Longest wait for a value that should be there.

It may be gone: the node that held it died, or it was moved out of memory. `ray.get` without a limit could then wait
for ever.
"""
AGENT_AXIS = {"versions": 1, "metrics": 1, "memory": 1, "state": None}
"""The axis of agents in an array of a fragment, where it is not the third; None: all agents share it."""


class RemoteRows(Mapping[int, NDArray[np.float32]]):
    """Rows of one version, one object per learner: a list of `RowSlice`. Collectors get the references.

    A learner that is lost takes its object with it; its replacement puts the same rows again.
    """

    def __init__(self, parts: Sequence[int], references: list[Any], fetch: Callable[[RemoteRows], Any]) -> None:
        self.references = references  # per learner
        self.missing: set[int] = set()  # learners whose object is gone, and not put again yet
        self._parts, self._fetch = parts, fetch

    def __getitem__(self, part: int) -> NDArray[np.float32]:
        return join_rows(self._fetch(self))[part]

    def items(self) -> Any:
        """All at once: each is fetched once."""
        return join_rows(self._fetch(self)).items()

    def __iter__(self) -> Iterator[int]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def join_rows(objects: Sequence[Sequence[RowSlice]]) -> dict[int, NDArray[np.float32]]:
    """The rows of every part, from the objects of all learners in the order of the herd."""
    rows: dict[int, list[NDArray[np.float32]]] = {}
    for part, _, own in (piece for pieces in objects for piece in pieces):
        rows.setdefault(part, []).append(own)
    return {part: np.concatenate(own) for part, own in rows.items()}


class RemoteFragments(Sequence[Fragment]):
    """The fragments of a task, one object per learner: a list of the fragments of its slices.

    Read here, they have the agents that learn, and no others.
    """

    def __init__(self, references: list[Any], groups: int, get: Callable[..., Any], nbytes: int) -> None:
        self.references, self.nbytes = references, nbytes  # per learner, and of all of them
        self._groups, self._get = groups, get

    def __len__(self) -> int:
        return self._groups

    @overload
    def __getitem__(self, group: int) -> Fragment: ...
    @overload
    def __getitem__(self, group: slice) -> Sequence[Fragment]: ...
    def __getitem__(self, group: int | slice) -> Fragment | Sequence[Fragment]:
        if isinstance(group, slice):
            return [self[own] for own in range(self._groups)[group]]
        if group >= self._groups:
            raise IndexError(group)
        objects = self._get(self.references, timeout=FETCH_LIMIT_S)
        return _join_agents([own for pieces in objects for own in pieces if own.origin.group == group])


def _join_agents(pieces: Sequence[Fragment]) -> Fragment:
    """One fragment with the agents of all."""
    axes = {field.name: AGENT_AXIS.get(field.name, 2) for field in fields(Fragment)}
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(piece, name) for piece in pieces], axis)
        for name, axis in axes.items()
        if axis is not None and isinstance(getattr(pieces[0], name), np.ndarray)
    }
    names = pieces[0].extras
    extras = {name: np.concatenate([piece.extras[name] for piece in pieces], 2) for name in names}
    return replace(pieces[0], extras=extras, **arrays)
