"""The registry: the table of shipped games, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from remuda.core.errors import ConfigError
from remuda.games.registry import SHIPPED, find_game

# `remuda/__init__.py` may import anything; here only what the registry itself imports counts.
LIST_GAMES = """
import importlib.util, sys, types
package = types.ModuleType("remuda")
package.__path__ = importlib.util.find_spec("remuda").submodule_search_locations
sys.modules["remuda"] = package
from remuda.games.registry import SHIPPED
for name, game in SHIPPED.items():
    print(name, game.summary)
print({"torch", "numba", "gymnasium", "pettingzoo"} & set(sys.modules))
"""


@pytest.mark.parametrize("name", SHIPPED)
def test_the_table_and_the_entry_of_a_shipped_game_agree(name: str) -> None:
    entry = find_game(name)
    assert entry is import_module(SHIPPED[name].module).ENTRY
    assert (entry.name, entry.summary) == (name, SHIPPED[name].summary)


def test_games_are_listed_without_importing_anything_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", LIST_GAMES], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    *games, heavy = done.stdout.splitlines()
    assert games == [f"{name} {game.summary}" for name, game in SHIPPED.items()]
    assert heavy == "set()"


@pytest.mark.parametrize("name", ["mygame.py", "mygame", "folder/mygame.py", "folder.mygame"])
def test_a_module_without_its_entry_gets_a_hint(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    for folder in (tmp_path, tmp_path / "folder"):
        (folder / "mygame.py").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"mygame:NAME"):
        find_game(name)


@pytest.mark.parametrize("raised", ["SystemExit(7)", "type('Odd', (BaseException,), {})('odd')", "ValueError('bad')"])
def test_a_module_that_raises_is_one_sentence(raised: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = f"raises_{len(raised)}"
    (tmp_path / f"{module}.py").write_text(f"raise {raised}")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=rf"game '{module}:GAME' cannot be imported: \w+: \w+"):
        find_game(f"{module}:GAME")
