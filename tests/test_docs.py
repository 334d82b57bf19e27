"""The documentation: every snippet runs, the site builds strictly, README stays short, every figure was measured."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
from benchmarks import results
from typer.main import get_command

import remuda
import remuda.cli.training as cli_training
import remuda.runs.training as training
from remuda.cli.main import app
from remuda.core.errors import Stopped

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
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


def commands(page: Path) -> Iterator[list[str]]:
    """The words of every `remuda` command in an indented block of a page; `…` stands for what is left out."""
    text = page.read_text("utf-8").replace("\\\n", " ")
    for line in re.findall(r"^(?:    |\$ )(remuda [a-z].*)$", text, re.MULTILINE):
        if "…" not in line:
            yield shlex.split(line, comments=True)[1:]


COMMANDS = [page for page in PAGES if any(commands(page))]


@pytest.mark.parametrize("page", COMMANDS, ids=lambda page: page.stem)
def test_every_command_of_a_page_is_understood(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its flags exist, and what it would train is a valid plan."""

    def stop(job: Any) -> None:
        raise Stopped("understood")

    monkeypatch.setattr(training, "_train", stop)
    monkeypatch.setattr(cli_training, "board_beside", lambda folder: nullcontext())
    monkeypatch.syspath_prepend(str(ROOT / "examples"))  # where the pages have copied their examples
    for words in commands(page):
        command: Any = get_command(app)
        while hasattr(command, "commands"):
            command, *words = command.commands[words[0]], *words[1:]
        # Wrong flags and arguments raise here.
        with command.make_context(command.name, list(words)) as context:
            with_plan = command.name == "train" and not context.params["seeds"]
            if with_plan and not context.params["config"] and "my_experiment" not in words[0]:
                with pytest.raises(Stopped, match="understood"):
                    command.invoke(context)


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


class Definitions:
    """Everything that the sources define: classes with their members and bases, and all names."""

    def __init__(self, root: Path) -> None:
        self.members: dict[str, set[str]] = {}
        self.bases: dict[str, list[str]] = {}
        self.names: set[str] = set()
        for path in root.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.ClassDef):
                    self.members[node.name] = set(filter(None, map(defined_name, node.body)))
                    self.bases[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]
                self.names.add(defined_name(node) or "")

    def has(self, name: str) -> bool:
        """Whether `name`, `Class.name` or `variable.name` is defined."""
        owner, _, member = name.rpartition(".")
        if owner not in self.members:
            return member in self.names
        return member in self.members[owner] or any(self.has(f"{base}.{member}") for base in self.bases[owner])


def defined_name(node: ast.AST) -> str | None:
    """The name that a statement defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return node.name
    target = (
        node.target if isinstance(node, ast.AnnAssign) else node.targets[0] if isinstance(node, ast.Assign) else None
    )
    return target.id if isinstance(target, ast.Name) else None


def test_files_and_functions_of_the_architecture_exist() -> None:
    """A page that leads through the code by names is worth as much as they are."""
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    quoted = set(re.findall(r"`([\w./]+)`", page))
    files = {name for name in quoted if re.search(r"\.(py|js)$", name)}
    folders = [ROOT, *(path for path in (ROOT / "src" / "remuda").rglob("*") if path.is_dir())]
    assert len(files) > 25
    assert [
        name for name in files if not any((folder / name).is_file() for folder in [*folders, ROOT / "src/remuda"])
    ] == []
    found, engines = Definitions(ROOT / "src" / "remuda"), set(remuda.list_engines())
    functions = {name for name in quoted - files if re.fullmatch(r"[A-Za-z_]\w*(\.\w+)?", name)} - engines
    assert len(functions) > 80
    assert sorted(name for name in functions if not found.has(name)) == ["pyproject.toml"]


def test_the_page_of_measurements_is_what_benchmarks_printed() -> None:
    assert results.PAGE.read_text("utf-8") == results.page()


def test_figures_of_readme_stand_in_the_section_they_link_to() -> None:
    sections = dict(re.findall(r"^## (\w+)$(.*?)(?=^## |\Z)", results.page(), re.MULTILINE | re.DOTALL))
    claims = re.findall(r"\[([^\]]+)\]\(docs/benchmarks\.md#(\w+)\)", (ROOT / "README.md").read_text("utf-8"))
    assert claims
    for text, name in claims:
        measured = [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\.?\d*", sections[name])]
        for shown, million in re.findall(r"(\d[\d,.]*)( million)?", text):
            figure = shown.replace(",", "")
            digits = len(figure.partition(".")[2])
            assert figure in {f"{number / (1e6 if million else 1):.{digits}f}" for number in measured}, text


def test_every_other_figure_of_readme_stands_in_a_page_of_measurements() -> None:
    """Figures of training are not benchmarks: they stand in the table of docs/cage2.md, with their commands."""
    table = (ROOT / "README.md").read_text("utf-8").partition("## What you get")[2].partition("\n## ")[0]
    pages = results.page() + (ROOT / "docs" / "cage2.md").read_text("utf-8").partition("## Figures")[2]
    measured = [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\.?\d*", pages)]
    figures = re.findall(r"(\d+\.\d+|\d{1,3}(?:,\d{3})+)( million)?", table)
    assert len(figures) > 5
    for figure, million in figures:
        shown = figure.replace(",", "")
        digits = len(shown.partition(".")[2])
        assert shown in {f"{number / (1e6 if million else 1):.{digits}f}" for number in measured}, figure


@pytest.mark.promise
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "0-3: iqn" in (tmp_path / "reference" / "settings" / "index.html").read_text("utf-8"), "braces are lost"
    reference = (tmp_path / "reference" / "names" / "index.html").read_text("utf-8")
    assert all(f"<code>{name}</code>" in reference for name in remuda.__all__ if name != "__version__")
