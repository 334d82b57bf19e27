"""Words: a class name stands once, and names and prose use words that a reader of this field would search for."""

from __future__ import annotations

import ast
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import remuda

SOURCES = Path(remuda.__file__).parent
ROOT = Path(__file__).parents[2]
FOLDERS = (
    *(f"src/remuda/{path.name}" for path in sorted(SOURCES.iterdir()) if (path / "__init__.py").exists()),
    "src/remuda_envs",
    "benchmarks",
    "examples",
    "tests",
)
TEXTS = (".md", ".py", ".js", ".html", ".css", ".toml", ".yaml", ".yml", ".ipynb")
BANNED = {
    "aside": "skipped, excluded",
    "attended": "watched",
    "audience": "listener",
    "books": "log, state, CSV rows",
    "bury": "remove",
    "cast": "evaluation setup",
    "crew": "worker pool",
    "deal": "assign, send",
    "dealt": "pending",
    "flaw": "invalid sample",
    "hand": "handle",
    "hire": "start",
    "lapse": "skipped update",
    "least": "min",
    "ledger": "failure log",
    "legacy": "what it is",
    "lesson": "learning round",
    "life": "status, episode, segment",
    "lived": "alive",
    "lives": "episodes, segments",
    "manner": "config",
    "most": "max",
    "news": "outcome of a turn",
    "pace": "step cost",
    "post": "learner context",
    "pulse": "heartbeat",
    "rehearsal": "warm-up",
    "rehearse": "warm up",
    "room": "slots, empty fragment",
    "seat": "policy binding",
    "sight": "policy input",
    "spoilt": "invalid",
    "staffing": "placement",
    "stretch": "segment",
    "student": "learner",
    "teach": "train",
    "warden": "supervisor",
}
"""Words that are metaphors, or that nobody would search for: word → what to say instead."""
EVERYDAY = {
    "aside",
    "cast",
    "deal",
    "hand",
    "least",
    "life",
    "lived",
    "lives",
    "most",
    "news",
    "post",
    "room",
    "sight",
    "stretch",
}
"""Banned as names, and fine in a sentence."""
ALLOWED = {
    ("*", "cast"): "typing.cast",
    ("*", "__post_init__"): "a method that dataclasses call",
    ("board/server.py", "do_POST"): "a method that http.server calls",
    ("cli/checking.py", "post_mortem"): "pdb.post_mortem",
    ("benchmarks/transport.py", "most_common"): "a method of collections.Counter",
    ("studies/statistics.py", "_student"): "Student's distribution",
    ("studies/leaderboard.py", "_student_half_width"): "Student's distribution",
}
"""Where a banned word is right: (pattern of files, identifier) → why."""
ALLOWED_TEXT = {
    "CHANGELOG.md": "the table of old and new names",
    "tests/core/test_names.py": "the list of banned words",
}
"""Files whose prose may have banned words → why."""
RIDDLES = (
    r"that (is|are) none\b",
    r"what is ready first",
    r"\bby looking\b",
    r"but none of\b",
)
"""Phrases that a reader has to guess the meaning of."""


@cache
def identifiers(path: Path) -> dict[str, int]:
    """Names in the code of a file → the line of the first. Comments and strings, so also docstrings, are not code."""
    found: dict[str, int] = {}
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.NAME:
                found.setdefault(token.string, token.start[0])
    return found


def words(identifier: str) -> list[str]:
    """The words of an identifier: `least_rows`, `LEAST_ROWS` and `LeastRows` have the words least and rows."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", identifier)]


def is_banned(word: str) -> bool:
    """Whether a word or its singular is banned."""
    return word in BANNED or (word.endswith("s") and word[:-1] in BANNED)


def is_banned_in_prose(word: str) -> bool:
    """Whether a word or its singular is banned in sentences, too."""
    return is_banned(word) and not {word, word.removesuffix("s")} & EVERYDAY


def has_banned_word(name: str) -> bool:
    """Whether an identifier has a banned word. The name of a test is a sentence."""
    banned = is_banned_in_prose if name.startswith("test_") else is_banned
    return any(map(banned, words(name)))


def is_allowed(path: Path, name: str) -> bool:
    """Whether an identifier is among the exceptions."""
    return any(path.match(files) and name == allowed for files, allowed in ALLOWED)


def python_files() -> Iterator[Path]:
    """All Python files of the tree."""
    for folder in FOLDERS:
        yield from sorted((ROOT / folder).rglob("*.py"))


def texts() -> Iterator[tuple[str, str]]:
    """All files of the tree that a person wrote, with their names."""
    for folder in ("", "docs", "notebooks", ".github", *FOLDERS):
        paths = (ROOT / folder).rglob("*") if folder else ROOT.iterdir()
        for path in sorted(paths):
            if path.suffix in TEXTS and path.relative_to(ROOT).as_posix() not in ALLOWED_TEXT:
                yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def test_words_of_identifiers() -> None:
    assert words("least_rows") == words("LEAST_ROWS") == words("LeastRows") == ["least", "rows"]
    assert words("_PPONetwork2") == ["ppo", "network", "2"]
    assert is_banned("seats")
    assert not is_banned("handle")
    assert has_banned_word("most_rows")
    assert not has_banned_word("test_it_takes_at_most_one_row")
    assert has_banned_word("test_a_crew_is_replaced")


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_identifier_has_a_banned_word(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name, line in identifiers(path).items()
        if has_banned_word(name) and not is_allowed(path, name)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(("files", "name"), ALLOWED)
def test_every_exception_is_needed(files: str, name: str) -> None:
    assert any(map(is_banned, words(name)))
    assert any(path.match(files) and name in identifiers(path) for path in python_files())


def test_no_prose_has_a_banned_word_or_a_riddle() -> None:
    banned = {form for word in BANNED if is_banned_in_prose(word) for form in (word, f"{word}s")}
    pattern = re.compile(rf"\b({'|'.join(sorted(banned))})\b|{'|'.join(RIDDLES)}")
    found = [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)


def test_a_class_name_stands_once() -> None:
    places = defaultdict(list)
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(SOURCES)}:{node.lineno}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
