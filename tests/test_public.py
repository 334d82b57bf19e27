"""The public list, and rules that a scan of the sources can hold."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import remuda

SOURCES = Path(remuda.__file__).parent


def scan(pattern: str, besides: tuple[str, ...] = ()) -> list[str]:
    """Where code (comments and docstring prose aside) matches."""
    found = []
    for path in sorted(SOURCES.rglob("*.py")):
        if path.name in besides:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if re.search(pattern, line.split("#")[0]):
                found.append(f"{path.relative_to(SOURCES)}:{number}: {line.strip()}")
    return found


def test_the_public_list_is_this_one() -> None:
    assert remuda.__all__ == ["Finding", "RemudaError", "Run", "__version__", "check", "resume", "train"]
    assert all(hasattr(remuda, name) for name in remuda.__all__)


def test_the_version_is_the_installed_one() -> None:
    from importlib.metadata import version

    assert remuda.__version__ == version("remuda")


def test_every_error_is_one_of_ours() -> None:
    from remuda.core import errors

    ours = [thing for thing in vars(errors).values() if isinstance(thing, type) and thing.__module__ == errors.__name__]
    assert len(ours) >= 9
    assert all(issubclass(error, remuda.RemudaError) for error in ours)
    drawn = errors.__doc__ or ""
    assert [error.__name__ for error in ours if error.__name__ not in drawn] == []


@pytest.mark.parametrize(
    ("pattern", "besides"),
    [
        (r"np\.random|numpy\.random|numpy import random", ("global_random_state.py",)),  # of simulators that use it
        (r"^\s*(import random\b|from random import)", ("global_random_state.py", "broken_games.py")),
        (r"torch\.(manual_seed|seed|rand|randn|randint|randperm|bernoulli|normal|multinomial)\b", ("rng.py",)),
        (r"\.(random_|uniform_|normal_|bernoulli_|exponential_)\(", ()),
        (r"\buuid\b|os\.urandom|\bsecrets\b", ()),
    ],
)
def test_randomness_is_born_only_in_rng(pattern: str, besides: tuple[str, ...]) -> None:
    assert scan(pattern, besides) == []


def test_the_scan_finds_what_is_there() -> None:
    assert any("torch.manual_seed" in line for line in scan(r"torch\.manual_seed"))


def test_every_module_has_a_docstring_and_can_be_imported() -> None:
    names = [module.name for module in pkgutil.walk_packages([str(SOURCES)], "remuda.")]
    assert len(names) > 20
    for name in names:
        if name != "remuda.__main__":
            assert importlib.import_module(name).__doc__, name


def test_torch_keeps_its_own_stream(train: object) -> None:
    """Training must not disturb a program that uses torch's global generator itself."""
    import torch

    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    train()  # type: ignore[operator]
    assert torch.equal(torch.rand(4), expected)
