"""Other makers' libraries stay out of the tests that follow."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import forkserver

import pytest


@pytest.fixture(scope="module", autouse=True)
def a_fork_server_of_their_own() -> Iterator[None]:
    """pygame, once it is loaded there, would catch the crashes of everybody's workers."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    yield
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
