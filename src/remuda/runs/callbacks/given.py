"""Which callbacks a run was given as objects or functions: no plan can name them, so a resumed run asks for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from remuda.runs.callbacks.base import Callback
from remuda.runs.callbacks.registry import callback_name

FILE = "callbacks.json"
MAX_BYTES = 100_000


def remember_given(folder: Path, callbacks: Sequence[Callback]) -> list[str]:
    """Write the names of these callbacks into a run directory; returns a line if it had others before."""
    before, now = _read(folder / FILE), [callback_name(own) for own in callbacks if not own.is_internal]
    every = list(dict.fromkeys([*before, *now]))
    if every != before:
        draft = folder / f".{FILE}.draft"
        draft.write_text(json.dumps(every), encoding="utf-8")
        draft.replace(folder / FILE)
    lost = ", ".join(name for name in before if name not in now)
    again = f"give them again from Python, remuda.resume({str(folder)!r}, callbacks=[…])"
    return [f"warning: this run had callbacks that it has no more, {lost}: {again}"] if lost else []


def _read(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return []
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []
