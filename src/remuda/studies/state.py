"""What a study remembers besides its runs: which of them a callback ended, and which failed."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pydantic import Field, ValidationError

from remuda.core.errors import RunError
from remuda.core.options import Options
from remuda.core.paths import exists, is_file
from remuda.runs.storage import storage_errors
from remuda.studies.trials.trial import TrialOutcome

STATE = "study.json"


class StudyState(Options):
    """Runs that ended otherwise than by their plan, by name, and why."""

    format: int = Field(1, ge=1, le=1)
    ended: dict[str, str] = Field({})
    failed: dict[str, str] = Field({})

    @classmethod
    def of(cls, folder: Path) -> StudyState:
        """The state in a study's directory; a new study has an empty one."""
        try:
            if exists(folder / STATE) and not is_file(folder / STATE):
                raise OSError("not a regular file")  # a pipe might never say anything
            return cls(**json.loads((folder / STATE).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, TypeError, RecursionError, ValidationError):
            raise RunError(f"{folder / STATE} is damaged: remove it; runs that failed are then tried again") from None

    def with_outcome(self, outcome: TrialOutcome) -> StudyState:
        """The state after a run has ended."""
        name = outcome.trial.name
        ended = {key: why for key, why in self.ended.items() if key != name}
        failed = {key: why for key, why in self.failed.items() if key != name}
        if outcome.status == "ended":
            ended[name] = outcome.why
        if outcome.status == "failed":
            failed[name] = outcome.why
        return StudyState(ended=ended, failed=failed)

    def write(self, folder: Path) -> None:
        """Replace the file atomically."""
        with storage_errors(folder):
            draft = folder / f".{STATE}.draft"
            with draft.open("w", encoding="utf-8") as file:
                file.write(self.model_dump_json(indent=1))
                file.flush()
                os.fsync(file.fileno())
            draft.replace(folder / STATE)
