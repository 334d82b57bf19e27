"""Small files among the user's cached ones. What is not there is measured again, so that no error ends anything."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def write_cached(path: Path, text: str) -> None:
    """Replace a file at once; on a full disk, or where nothing can be written, it stays as it was."""
    draft = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(exist_ok=True)
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink()
