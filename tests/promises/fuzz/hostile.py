"""What hostile files are made of, and how to tell whether they did any harm."""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from remuda.core.errors import UsageError

PATIENCE_S = 200  # for one example: what takes longer hangs
MAX_MEMORY = 200 << 20
EXECUTION = {"os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen", "socket.connect"}

HUGE = [2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, 10**30, 10**400]
numbers = st.one_of(
    st.integers(-3, 20), st.integers(), st.floats(), st.sampled_from([*HUGE, *(-number for number in HUGE)])
)
tricks = st.sampled_from(
    [
        "../../x", "/etc/passwd", "..", ".", "", "/", "a\nb", "a\0b", "\ud800", "x" * 300, "~", "$HOME", "nan", "-1",
        "learner.safetensors/..", "policy.safetensors", "config.yaml", "frozen:/", "frozen:../..", "\u2028", "%s{0}",
    ]
)  # fmt: skip
plain = st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=20), tricks)
trees = st.recursive(
    plain, lambda own: st.lists(own, max_size=4) | st.dictionaries(st.text(max_size=8), own, max_size=4), max_leaves=8
)
"""Whatever JSON can hold."""


def times(quick: int, slow: int) -> pytest.MarkDecorator:
    """A test gets `count`, the examples to try: few in `make test`, many in `make test-slow`."""
    values = [pytest.param(quick, id="quick"), pytest.param(slow, id="slow", marks=pytest.mark.slow)]
    return pytest.mark.parametrize("count", values)


def often(count: int) -> settings:
    """So many examples, however long each takes; few are always the same, many are others every time."""
    few = count < 200
    return settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), derandomize=few)


@st.composite
def altered(draw: st.DrawFn, tree: Any) -> Any:
    """A tree with one thing in it replaced, left out or said twice."""
    if isinstance(tree, dict | list) and tree and draw(st.integers(0, 4)):
        return draw(_altered_inside(tree))
    return draw(trees)


@st.composite
def _altered_inside(draw: st.DrawFn, tree: Any) -> Any:
    key = draw(st.sampled_from(list(tree) if isinstance(tree, dict) else range(len(tree))))
    copy = tree.copy()
    deed = draw(st.sampled_from(["alter", "alter", "alter", "remove", "add"]))
    if deed == "alter":
        copy[key] = draw(altered(tree[key]))
    elif deed == "remove":
        del copy[key]
    elif isinstance(copy, dict):
        copy[draw(st.text(max_size=8) | tricks)] = draw(trees)
    else:
        copy.insert(key, tree[key])
    return copy


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes with something wrong: cut short, altered, added, or all of them others."""
    place = draw(st.integers(0, max(len(content) - 1, 0)))
    return draw(
        st.one_of(
            st.just(content[:place]),
            st.integers(1, 255).map(lambda bits: _flipped(content, place, bits)),
            st.binary(min_size=1, max_size=20).map(lambda more: content[:place] + more + content[place:]),
            st.binary(min_size=1, max_size=20).map(
                lambda other: content[:place] + other + content[place + len(other) :]
            ),
            st.binary(max_size=200),
        )
    )


def _flipped(content: bytes, place: int, bits: int) -> bytes:
    return content[:place] + bytes(byte ^ bits for byte in content[place : place + 1]) + content[place + 1 :]


def deep(levels: int = 100_000) -> str:
    """Lists in lists."""
    return "[" * levels + "]" * levels


def refusal(act: Callable[[], Any]) -> str | None:
    """What a person is told if an act is refused; whatever else is raised is a bug."""
    said = None
    try:
        act()
    except UsageError as error:
        said = str(error)
    assert said is None or len(said.splitlines()) == 1, f"not one line: {said!r}"
    return said


def listing(folder: Path) -> dict[str, tuple[int, str]]:
    """Everything in a folder: when it was altered and what it is."""
    return {str(path.relative_to(folder)): _state(path) for path in sorted(folder.rglob("*"))}


def _state(path: Path) -> tuple[int, str]:
    content = path.read_bytes() if path.is_file() else b""
    return path.lstat().st_mtime_ns, hashlib.sha256(content).hexdigest()


class Witness:
    """Notes whenever this process runs another program or calls somebody."""

    def __init__(self) -> None:
        self.watching = False
        self.seen: list[str] = []
        sys.addaudithook(self._hear)  # for good: hooks cannot be taken away

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if self.watching and event in EXECUTION:
            self.seen.append(f"{event}{args}")


_witness: list[Witness] = []


@contextmanager
def harmless(neighbour: Path) -> Iterator[None]:
    """Nothing is executed in here, nothing outside is touched, and it ends."""
    neighbour.mkdir(exist_ok=True)
    (neighbour / "000000099").mkdir(exist_ok=True)
    for name in ("precious", "000000099/checkpoint.json", "policy.safetensors"):
        (neighbour / name).write_text("mine")
    before = listing(neighbour)
    _witness[:] = _witness or [Witness()]
    witness = _witness[0]
    witness.seen.clear()
    witness.watching = True
    try:
        with patience():
            yield
    finally:
        witness.watching = False
    assert witness.seen == [], "something was executed"
    assert listing(neighbour) == before, "something outside was touched"


@contextmanager
def patience(seconds: int = PATIENCE_S) -> Iterator[None]:
    """Fail rather than hang."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"still busy after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def frugal() -> Iterator[None]:
    """No bomb goes off in here."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < MAX_MEMORY, f"{grown:,} bytes were taken"


def make_odd(path: Path, kind: str, target: Path) -> None:
    """Put a link to `target`, a dangling link, a pipe or a directory in the place of a file."""
    if path.is_dir() and not path.is_symlink():
        path.rename(path.with_name(f"{path.name}.gone"))
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(target if kind == "link" else target / "nowhere")
