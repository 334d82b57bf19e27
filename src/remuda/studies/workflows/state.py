"""The state of a search: one JSON file from which it continues, and tables for people."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from remuda.core.errors import RunError
from remuda.core.options import Options
from remuda.core.paths import is_file
from remuda.runs.directory import to_json
from remuda.runs.storage import storage_errors
from remuda.studies.workflows.options import SearchOptions, TrialResult

STATE = "search.json"
RESULT = "result.json"


class SearchState(Options):
    """Everything a search depends on, and the results so far."""

    format: int = Field(1, ge=1, le=1)
    game: str
    options: SearchOptions
    settings: dict[str, Any]  # of the trials
    outcomes: list[TrialResult] = Field(default_factory=list)  # of finished trials, in order
    wall_s: float = Field(0.0, ge=0)  # so far, without interruptions
    proposing_s: float = Field(0.0, ge=0)
    scoring_s: float = Field(0.0, ge=0)
    finished: bool = False


def is_search(folder: Path) -> bool:
    """Whether the folder holds a search."""
    return is_file(folder / STATE)


def read_state(folder: Path) -> SearchState:
    """The state in a directory; raises RunError that says what is wrong with it."""
    try:
        return SearchState(**json.loads((folder / STATE).read_text(encoding="utf-8")))
    except OSError as error:
        raise RunError(f"{folder} is not a search: {STATE} cannot be read ({error.strerror})") from None
    except (ValueError, TypeError, RecursionError) as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"]) if isinstance(error, ValidationError) else ""
        raise RunError(f"{folder / STATE} is damaged{f' at {where}' if where else ''}: begin the search anew") from None


def write_state(folder: Path, state: SearchState) -> None:
    """Replace the state file atomically."""
    with storage_errors(folder):
        draft = folder / f".{STATE}.draft"
        with draft.open("w", encoding="utf-8") as file:
            file.write(to_json(state.model_dump(mode="json"), indent=1))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(folder / STATE)
