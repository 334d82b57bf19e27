"""What commands print: JSON that every other program can read, and refusals in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def strict_json(text: str) -> Any:
    """Parse as every other program would: NaN is not JSON."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def assert_refused(outcome: Any, match: str, folder: Path | None = None) -> None:
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("error: ")
    assert len(outcome.err.splitlines()) == 1
    assert match in outcome.err
    assert list((folder or Path()).iterdir()) == [], "something was made"
