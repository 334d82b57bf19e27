"""The results of benchmarks: what was printed is kept in `results/`, and `docs/benchmarks.md` is made of it.

A result that was measured with another version of remuda is an error: it is measured again, or deleted.
"""

from __future__ import annotations

import ast
import datetime
import io
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from remuda import __version__

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
RAYS_OWN_LINES = re.compile(r"^\x1b\[\d+m\(raylet\).*\n", re.MULTILINE)
INTRODUCTION = """# What was measured

Below is what each benchmark printed, word for word, with its command, day, commit and machine. Ratios are of two things
that were measured in turns in the same run, so a busy machine slows both. A range in brackets is the spread of the
repeats. `python -m benchmarks NAME --record` measures again and writes this page; [the diary](../benchmarks/DIARY.md)
keeps what earlier versions did.
"""


@dataclass(frozen=True)
class Result:
    """What a benchmark printed, and when, where and with what."""

    name: str
    facts: Mapping[str, str]
    text: str

    @classmethod
    def read(cls, path: Path) -> Result:
        """A recorded result."""
        head, text = path.read_text().split("\n\n", 1)
        facts = dict(line.split(": ", 1) for line in head.splitlines())
        if facts["version"] != __version__:
            sys.exit(
                f"{path.name} was measured with {facts['version']}, not with {__version__}: measure again or delete it"
            )
        return cls(path.stem, facts, text)

    def write(self) -> None:
        """Replace the recorded result."""
        RESULTS.mkdir(exist_ok=True)
        head = "".join(f"{name}: {value}\n" for name, value in self.facts.items())
        (RESULTS / f"{self.name}.txt").write_text(f"{head}\n{self.text}")

    def section(self) -> str:
        """The result as a part of the page."""
        source = (ROOT / "benchmarks" / f"{self.name}.py").read_text("utf-8")
        title = (ast.get_docstring(ast.parse(source)) or self.name).split("\n\n")[0].replace("\n", " ")
        facts = self.facts
        return (
            f"\n## {self.name}\n\n{title}\n\n`{facts['command']}`, {facts['date']}, commit {facts['commit']}:\n\n"
            f"```text\n{self.text.strip()}\n```\n"
        )


def page() -> str:
    """The page of all recorded results."""
    return INTRODUCTION + "".join(Result.read(path).section() for path in sorted(RESULTS.glob("*.txt")))


@contextmanager
def recorded(name: str, command: str | None = None) -> Iterator[None]:
    """Keep what is printed meanwhile, without Ray's warnings, as the result of a benchmark, and write the page.

    `command` is what measured it, where that is not `python -m benchmarks NAME`.
    """
    commit = _git("rev-parse", "--short", "HEAD") + ("-dirty" if _git("status", "--porcelain", "src") else "")
    heard = _Heard(sys.stdout)
    sys.stdout = heard
    try:
        yield
    finally:
        sys.stdout = heard.console
    facts = {
        "command": command or f"python -m benchmarks {name}",
        "date": datetime.date.today().isoformat(),
        "commit": commit,
        "version": __version__,
    }
    Result(name, facts, RAYS_OWN_LINES.sub("", heard.getvalue()).strip() + "\n").write()
    PAGE.write_text(page())


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


class _Heard(io.StringIO):
    """Prints, and remembers what was printed."""

    def __init__(self, console: TextIO) -> None:
        super().__init__()
        self.console = console

    def write(self, text: str) -> int:
        self.console.write(text)
        return super().write(text)

    def flush(self) -> None:
        self.console.flush()
