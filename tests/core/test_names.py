"""Names: a class name stands once in remuda, and identifiers are words that a reader of this field would search for."""

from __future__ import annotations

import ast
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import remuda

SOURCES = Path(remuda.__file__).parent
FOLDERS = ("core", "rollout", "learners")
"""Folders of remuda whose identifiers are checked."""
BANNED = {
    "aside": "skipped, excluded",
    "attended": "watched",
    "audience": "listener",
    "board": "weight store",
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
ALLOWED = {
    ("core/kernels.py", "cast"): "typing.cast",
    ("*", "__post_init__"): "a method that dataclasses call",
}
"""Where a banned word is right: (pattern of files, identifier) → why."""


def identifiers(path: Path) -> Iterator[tuple[int, str]]:
    """Names in the code of a file, with their lines. Comments and strings, so also docstrings, are not code."""
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.NAME:
                yield token.start[0], token.string


def words(identifier: str) -> list[str]:
    """The words of an identifier: `least_rows`, `LEAST_ROWS` and `LeastRows` have the words least and rows."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", identifier)]


def is_banned(word: str) -> bool:
    """Whether a word or its singular is banned."""
    return word in BANNED or (word.endswith("s") and word[:-1] in BANNED)


def is_allowed(path: Path, name: str) -> bool:
    """Whether an identifier is among the exceptions."""
    return any(path.match(files) and name == allowed for files, allowed in ALLOWED)


def test_words_of_identifiers() -> None:
    assert words("least_rows") == words("LEAST_ROWS") == words("LeastRows") == ["least", "rows"]
    assert words("_PPONetwork2") == ["ppo", "network", "2"]
    assert is_banned("seats")
    assert not is_banned("handle")


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_identifier_has_a_banned_word(folder: str) -> None:
    found = [
        f"{path.relative_to(SOURCES)}:{line}: {name}"
        for path in sorted((SOURCES / folder).rglob("*.py"))
        for line, name in identifiers(path)
        if any(map(is_banned, words(name))) and not is_allowed(path, name)
    ]
    assert found == []


@pytest.mark.parametrize(("files", "name"), ALLOWED)
def test_every_exception_is_needed(files: str, name: str) -> None:
    assert any(map(is_banned, words(name)))
    paths = [path for folder in FOLDERS for path in (SOURCES / folder).rglob("*.py")]
    assert any(path.match(files) and name == own for path in paths for _, own in identifiers(path))


def test_a_class_name_stands_once() -> None:
    places = defaultdict(list)
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(SOURCES)}:{node.lineno}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
