"""A run that was stopped half-way, and copies of it to spoil."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count as numbers_from
from pathlib import Path
from typing import Any

import pytest
from hostile import harmless
from stopped_run import FILES, NEWEST, OLDER, PLAN

import remuda
from remuda.runs.checkpoint import CHECKPOINTS


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped half-way; nobody may alter it."""
    out = tmp_path_factory.mktemp("half") / "run"
    remuda.train("remuda.testing:UNEQUAL", out=out, quiet=True, callbacks=[lambda rows: rows[0]["round"] < 3], **PLAN)
    assert [path.name for path in remuda.Run(out).checkpoints()] == [NEWEST, OLDER, "000000002"]
    assert {path.name for path in (out / CHECKPOINTS / NEWEST).iterdir()} == set(FILES)
    return out


@pytest.fixture
def copies(half: Path, tmp_path: Path) -> Callable[[], Any]:
    """Copies of the run, each for one example, with a neighbour that must not be touched."""
    numbers = numbers_from()

    @contextmanager
    def copy() -> Iterator[Path]:
        folder = tmp_path / str(next(numbers))
        path = folder / "run"
        shutil.copytree(half, path)
        with harmless(folder / "outside"):
            yield path
        shutil.rmtree(folder)

    return copy
