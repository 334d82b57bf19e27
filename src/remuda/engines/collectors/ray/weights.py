"""Weights in object stores: what tasks are sent with, and what an actor has fetched of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.fragment import Purpose
from remuda.engines.collectors.ray.cluster import require_ray
from remuda.engines.collectors.ray.remote import FETCH_LIMIT_S, RemoteRows, node_errors
from remuda.engines.interfaces import Rows

FETCH_WEIGHTS_LIMIT_S = 30.0
"""Longest wait for weights, twice as long each time in a row.

Ray waits for ever if it has lost a transfer, or if the process that put the weights was stopped.
"""


@dataclass(frozen=True)
class WeightReferences:
    """Where the weights of a version are."""

    version: int
    references: list[Any]  # to one object, or to one per learner
    rows: RemoteRows | None  # if learners put them

    @property
    def complete(self) -> bool:
        """Whether every object is there; not while a learner that was lost is placed again."""
        return self.rows is None or not self.rows.missing


class PublishedWeights:
    """The weights that tasks of each purpose are sent with."""

    def __init__(self) -> None:
        self._ray: Any = require_ray()
        self._newest: dict[Purpose, WeightReferences] = {}

    def publish(self, rows: Rows, version: int, purpose: Purpose) -> None:
        """Put the rows into this node's store, once, unless learners have put them."""
        if isinstance(rows, RemoteRows):
            self._newest[purpose] = WeightReferences(version, rows.references, rows)
            return
        pieces = [(part, 0, own) for part, own in rows.items()]
        self._newest[purpose] = WeightReferences(version, [self._ray.put(pieces)], None)

    def newest(self, purpose: Purpose) -> WeightReferences:
        """The weights for a task of this purpose."""
        return self._newest[Purpose.TRAIN if purpose is Purpose.TRAIN else Purpose.EVALUATE]

    def put_again(self, references: Sequence[Any]) -> None:
        """Replace weights that an actor could not fetch, unless they were replaced already, or will be."""
        for purpose, own in self._newest.items():
            if list(own.references) != list(references):
                continue
            if own.rows is None:  # this process put them, so they are here
                objects = self._ray.get(own.references, timeout=FETCH_LIMIT_S)
                self._newest[purpose] = replace(own, references=[self._ray.put(each) for each in objects])
            elif own.complete:  # else a learner was lost, and its replacement puts them
                own.rows.missing.update(range(len(references)))

    def clear(self) -> None:
        """Drop all references."""
        self._newest.clear()


class FetchedWeights:
    """The rows that an actor has, as its policies have them."""

    def __init__(self, rows: Mapping[int, NDArray[np.float32]]) -> None:
        self.rows = rows  # by part
        self._version = -1
        self._references: list[Any] = []  # to what these rows are of
        self._limit_s = FETCH_WEIGHTS_LIMIT_S

    def fetch(self, version: int, references: Sequence[Any]) -> bool:
        """Fetch the objects that are new; returns whether the rows are of another version now."""
        if list(references) == self._references and version == self._version:
            return False
        had = self._references if len(self._references) == len(references) else [None] * len(references)
        new = [own for own, old in zip(references, had, strict=True) if own != old]
        self._references = []  # while half of them are copied
        ray = require_ray()
        try:
            with node_errors():
                objects = ray.get(new, timeout=self._limit_s)
        except ray.exceptions.RayError:
            self._limit_s *= 2
            raise
        self._limit_s = FETCH_WEIGHTS_LIMIT_S
        for part, first, rows in (own for pieces in objects for own in pieces):
            self.rows[part][first : first + len(rows)] = rows
        self._references, self._version = list(references), version
        return True
