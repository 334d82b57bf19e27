"""A temporary folder is gone however the process that made it ends."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import proc
from remuda.transport import temporary
from remuda.transport.temporary import TemporaryFolder

PROGRAM = """
import sys
from remuda.transport.temporary import TemporaryFolder
with TemporaryFolder("remuda-test-", sys.argv[1]) as folder:
    (folder.path / "file").touch()
    print(flush=True)
    input()
"""


@pytest.mark.parametrize("killed", [False, True])
def test_it_is_removed_when_its_process_ends_or_is_killed(tmp_path: Path, killed: bool) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
        assert [path.name for path in tmp_path.glob("*/*")] == ["file"]
        if killed:
            process.kill()
        else:
            process.communicate("\n")
    proc.wait(lambda: not any(tmp_path.iterdir()), 60)


def test_it_is_removed_where_no_process_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **settings: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(temporary.subprocess, "Popen", refuse)
    with pytest.raises(BlockingIOError):
        TemporaryFolder("remuda-test-")
    assert not any(tmp_path.iterdir())
