"""Keeps third-party libraries out of the fork server that other tests use."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import forkserver

import pytest


@pytest.fixture(scope="module", autouse=True)
def own_fork_server() -> Iterator[None]:
    """Restart the fork server: pygame, once loaded there, would catch the crashes of all later workers."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    yield
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
