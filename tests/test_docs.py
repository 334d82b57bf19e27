"""The documentation: every snippet runs, the site builds strictly, README stays short."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

import remuda

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TESTED_ELSEWHERE = {"write-a-game.md", "write-a-learner.md"}
"""Pages that are a file in pieces; their own tests compare and run them."""
SMALLER = [(r"total_episodes=\d+", "total_episodes=8"), (r"\bepisodes=\d+", "episodes=4"),
           (r"--episodes \d+", "--episodes 4"), (r"--total-episodes \d+", "--total-episodes 12"),
           (r"--seconds \d+", "--seconds 0.2")]  # fmt: skip
"""Budgets are cut; everything else in a snippet is run as it stands."""


def snippets(page: Path) -> Iterator[tuple[str, str]]:
    """Language and text of the fences of a page that are to be run."""
    for language, text in re.findall(r"^```(\w*)[^\n]*\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        if language in ("python", "sh"):
            for pattern, smaller in SMALLER:
                text = re.sub(pattern, smaller, text)
            yield language, text


RUNNABLE = [page for page in PAGES if page.name not in TESTED_ELSEWHERE and any(snippets(page))]
MEASURES = {"engines", "tuning"}
"""Pages that call `remuda compare`, which takes more than a minute."""


@pytest.mark.promise
@pytest.mark.parametrize(
    "page", [pytest.param(own, id=own.stem, marks=[pytest.mark.slow] * (own.stem in MEASURES)) for own in RUNNABLE]
)
def test_every_snippet_of_a_page_runs(page: Path, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plt, "show", lambda *_: None)
    names: dict[str, Any] = {"__name__": "snippet"}
    for language, text in snippets(page):
        if language == "python":
            exec(compile(text, str(page), "exec"), names)
        else:
            for line in text.replace("\\\n", " ").splitlines():
                _run_command(line, cli)


def _run_command(line: str, cli: Callable[..., Any]) -> None:
    words = shlex.split(line, comments=True)
    if not words or words[0] in ("pip", "make"):  # tests/promises/wheel installs; CI calls the targets
        return
    assert words[0] == "remuda", f"a shell snippet should call remuda, pip or make, not {words[0]}"
    done = cli(*words[1:])
    assert done.code == 0, f"{line}\n{done.err}"


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150


def test_links_inside_the_repository_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text("utf-8")):
            made = target.startswith("reference/")  # from the source, when the site is built
            if not made and not (page.parent / target).exists():
                broken.append(f"{page.name}: {target}")
    assert broken == []


@pytest.mark.promise
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / "reference" / "names" / "index.html").read_text("utf-8")
    assert all(f"<code>{name}</code>" in reference for name in remuda.__all__ if name != "__version__")
