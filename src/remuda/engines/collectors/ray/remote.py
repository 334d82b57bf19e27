"""Values that stay on the nodes that made them; this process has references, and fetches what it is asked to read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from remuda.core.fragment import Fragment, join_agents, slice_agents
from remuda.engines.collectors.ray.cluster import require_ray

Cut = tuple[int, int, int]
"""Index of a group, and the range first … last-1 of its agents."""
Pick = tuple[int, int, int, int]
"""Index of an object, the position of a fragment in it, and the range first … last-1 of that fragment's agents."""
RowSlice = tuple[int, int, NDArray[np.float32]]
"""Index of a part of the herd, its first agent here, and the rows from there on, (agents, columns)."""
FETCH_LIMIT_S = 10.0
"""Longest wait for a value that should be there.

It may be gone: the node that held it died, or it was moved out of memory. `ray.get` without a limit could then wait
for ever.
"""


@contextmanager
def node_errors() -> Iterator[None]:
    """In an actor: if its node goes down, Ray's calls may raise an OSError. Raise one of Ray's errors instead."""
    errors = require_ray().exceptions
    try:
        yield
    except errors.RayError:
        raise
    except OSError as error:
        raise errors.RaySystemError(error) from error


class RemoteRows(Mapping[int, NDArray[np.float32]]):
    """Rows of one version, one object per learner: a list of `RowSlice`. Collectors get the references.

    A learner that is lost takes its object with it; its replacement puts the same rows again.
    """

    def __init__(
        self, parts: Sequence[int], slices: Any, references: list[Any], fetch: Callable[[RemoteRows], Any]
    ) -> None:
        """`slices` says which learner has which agents; the trainers compare it with theirs."""
        self.slices = slices
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


@dataclass(frozen=True)
class Share:
    """One learner's share of a task: objects, and what of them is the fragment of each of its cuts."""

    references: list[Any]  # to lists of fragments
    picks: list[list[Pick]]  # per cut, in the order of agents

    def fragments(self, objects: Sequence[Sequence[Fragment]]) -> list[Fragment]:
        """The fragment of each cut, from what the references stand for."""
        return [
            join_agents([slice_agents(objects[index][at], first, last) for index, at, first, last in own])
            for own in self.picks
        ]


class RemoteFragments(Sequence[Fragment]):
    """The fragments of a task, one object per learner: a list of the fragments of its slices.

    Read here, they have the agents that learn, and no others.
    """

    def __init__(
        self,
        references: list[Any],
        cuts: Sequence[Sequence[Cut]],
        groups: int,
        get: Callable[..., Any],
        nbytes: int,
    ) -> None:
        self.references, self.cuts = references, cuts  # per learner
        self.nbytes = nbytes  # of all of them
        self._groups, self._get = groups, get

    def share(self, learner: int, cuts: Sequence[Cut]) -> Share:
        """What has the agents of a learner's cuts, which need not be those that the objects were made with."""
        if self.cuts[learner] == cuts:  # nearly always; what follows compares all learners' cuts
            return Share(
                [self.references[learner]], [[(0, at, 0, last - first)] for at, (_, first, last) in enumerate(cuts)]
            )
        picks: list[list[Pick]] = []
        for group, first, last in cuts:
            picks.append([])
            for index, own in enumerate(self.cuts):
                for position, (other, start, stop) in enumerate(own):
                    if other == group and max(first, start) < min(last, stop):
                        picks[-1].append((index, position, max(first, start) - start, min(last, stop) - start))
        used = sorted({index for own in picks for index, *_ in own})
        renumbered = [[(used.index(pick[0]), *pick[1:]) for pick in own] for own in picks]
        return Share([self.references[index] for index in used], renumbered)

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
        return join_agents([own for pieces in objects for own in pieces if own.origin.group == group])
