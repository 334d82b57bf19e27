"""What lies at a path that a person gave: nothing, where the system refuses the name (too long, a NUL in it)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def exists(path: Path) -> bool:
    """Whether there is anything."""
    return _ask(path.exists)


def is_file(path: Path) -> bool:
    """Whether there is a file."""
    return _ask(path.is_file)


def is_folder(path: Path) -> bool:
    """Whether there is a directory."""
    return _ask(path.is_dir)


def _ask(question: Callable[[], bool]) -> bool:
    try:
        return question()
    except (OSError, ValueError):
        return False
