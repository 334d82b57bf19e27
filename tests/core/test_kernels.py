"""The compile cache is used, and notices every edit, also in a module that a game imports kernels from."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core.errors import NumbaError

from remuda.core import kernels

KIT = """
from remuda.core.kernels import kernel

@kernel
def step(x):
    return x + 1
"""
GAME = """
import kit
from kit import step
from remuda.core.kernels import kernel

@kernel
def play(x):
    return step(step(x))

if __name__ == "__main__":
    result = play(10)
    stats = getattr(play, "stats", None)
    print(result, sum(stats.cache_hits.values()) if stats else "-", sum(stats.cache_misses.values()) if stats else "-")
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "kit.py").write_text(KIT)
    (folder / "game.py").write_text(GAME)
    return folder


def run(package: Path, **environment: str) -> list[str]:
    """What the game prints: its result, cache hits, cache misses."""
    done = subprocess.run(
        [sys.executable, "-B", str(package / "game.py")],
        env={**os.environ, "XDG_CACHE_HOME": str(package.parent / "cache"), **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.split()


@pytest.mark.slow
def test_an_edited_import_recompiles_the_game_and_an_unedited_one_does_not(package: Path) -> None:
    assert run(package) == ["12", "0", "1"]
    assert run(package) == ["12", "1", "0"]
    (package / "kit.py").write_text(KIT.replace("x + 1", "x + 5"))
    assert run(package) == ["20", "0", "1"]


def test_the_same_source_runs_without_compiling(package: Path) -> None:
    assert run(package, NUMBA_DISABLE_JIT="1") == ["12", "-", "-"]
    assert not (package.parent / "cache").exists()


def test_the_hash_covers_kernels_of_remuda_and_of_the_caller(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = package.parent / "ours"
    ours.mkdir()
    (ours / "grid.py").write_text(KIT)
    monkeypatch.setattr(kernels, "_PACKAGE", ours)
    hashes = {kernels.sources_hash(package)}
    for edited in (ours / "grid.py", package / "kit.py", package / "game.py"):
        edited.write_text(edited.read_text() + "# edited\n")
        hashes.add(kernels.sources_hash(package))
    (package / "notes.py").write_text("nothing compiled here")
    hashes.add(kernels.sources_hash(package))
    assert len(hashes) == 4


def test_code_with_bounds_checks_is_kept_apart(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = kernels.sources_hash(package)
    monkeypatch.setattr("numba.config.BOUNDSCHECK", 1)
    assert kernels.sources_hash(package) != plain


def test_the_cache_setting_of_numba_is_restored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kernels.cache_directory.cache_clear()
    monkeypatch.setattr(kernels.numba.config, "CACHE_DIR", "elsewhere")
    monkeypatch.setattr(kernels.numba.config, "DISABLE_JIT", 0)
    try:
        kernels.kernel(run)
        assert kernels.numba.config.CACHE_DIR == "elsewhere"
    finally:
        kernels.cache_directory.cache_clear()


PLAY = "import remuda.games.treasurehunt as game; from remuda.core import kernels; print(kernels.cache_base())"


def start(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME")}
    command = [sys.executable, "-B", "-c", PLAY]
    return subprocess.run(command, env={**kept, **environment}, capture_output=True, text=True, timeout=120, check=True)


def test_a_cache_that_cannot_be_written_is_replaced_by_a_private_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    done = start({"XDG_CACHE_HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path)})
    private = tmp_path / f"remuda-{os.geteuid()}"
    assert done.stdout.strip() == str(private)
    assert len(done.stderr.strip().splitlines()) == 1
    assert "compiled code is kept in" in done.stderr
    assert private.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", ["open to others", "a link"])
def test_a_private_cache_that_others_could_write_is_not_used(tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").write_text("no directory")
    private = tmp_path / f"remuda-{os.geteuid()}"
    if kind == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        private.symlink_to(tmp_path / "elsewhere")
    else:
        private.mkdir()
        private.chmod(0o777)
    done = start({"XDG_CACHE_HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path)})
    assert done.stdout.strip() == "None"
    assert "compiled again at every start" in done.stderr


def test_a_kernel_without_a_file_is_compiled_in_memory() -> None:
    made: dict[str, object] = {}
    exec("from remuda.core.kernels import kernel\n@kernel\ndef add(x):\n    return x + 1\n", made)
    assert made["add"](3) == 4  # type: ignore[operator]


def make_an_array(size: int) -> float:
    return float(np.ones(size).sum())


def sum_of_a_row(numbers: Any, row: int) -> float:
    total = 0.0
    for number in numbers[row]:
        total += number
    return total


def test_a_kernel_that_allocates_nothing_may_slice_and_is_refused_where_it_makes_an_array() -> None:
    assert kernels.kernel(allocates=False)(sum_of_a_row)(np.arange(6.0).reshape(2, 3), 1) == 12
    with pytest.raises(NumbaError):
        kernels.kernel(allocates=False)(make_an_array)(3)


def test_code_that_no_module_has_runs_in_the_next_process_too(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text("from remuda.core.kernels import kernel\n@kernel\ndef twice(x):\n    return 2 * x\n")
    script = f"""
from pathlib import Path
names = {{"__name__": "snippet"}}
exec(compile(Path({str(file)!r}).read_text(), {str(file)!r}, "exec"), names)
assert names["twice"](2) == 4
"""
    for _ in range(2):
        subprocess.run([sys.executable, "-c", script], check=True)
