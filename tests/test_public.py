"""The public list, and rules that a scan of the sources can hold."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
import urllib.request
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


PUBLIC = [
    "Callback",
    "Finding",
    "Fragment",
    "Game",
    "GameEntry",
    "GameSpec",
    "Group",
    "Learner",
    "LearnerContext",
    "OffPolicyLearner",
    "OffPolicyOptions",
    "OnPolicyLearner",
    "OnPolicyOptions",
    "Options",
    "PerAgent",
    "Policy",
    "PolicyInput",
    "PolicyOutput",
    "Recording",
    "RemudaError",
    "ReplayBatch",
    "RolloutBatch",
    "Run",
    "__version__",
    "cage2_leaderboard",
    "check",
    "compare",
    "evaluate",
    "export",
    "grid",
    "kernel",
    "list_engines",
    "list_games",
    "list_learners",
    "list_settings",
    "load",
    "parallel_env",
    "record",
    "replay",
    "replay_failure",
    "resume",
    "resume_study",
    "rng",
    "scene",
    "schelling",
    "search",
    "serve_board",
    "study",
    "sweep",
    "tournament",
    "train",
    "verify",
    "watch",
]
FUNCTION_OF = {
    "board": "serve_board",
    "games": "list_games",
    "engines": "list_engines",
    "learners": "list_learners",
    "settings": "list_settings",
    "cage2 leaderboard": "cage2_leaderboard",
}
"""Public functions whose name is not that of their command."""
COMMANDS_ONLY = {"examples": "copies a file of the package for somebody who has no program yet"}
HEAVY = ("torch", "numba", "numpy", "gymnasium", "matplotlib", "pydantic", "ray")
ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.py")]


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_public_list_is_this_one() -> None:
    assert remuda.__all__ == PUBLIC
    assert dir(remuda) == PUBLIC
    assert all(hasattr(remuda, name) for name in PUBLIC)


def test_every_command_has_a_public_function() -> None:
    from remuda.cli import cage2
    from remuda.cli.main import app

    commands = [own.callback.__name__ for own in app.registered_commands if own.callback is not None]
    commands += [f"cage2 {own.callback.__name__}" for own in cage2.app.registered_commands if own.callback is not None]
    assert len(commands) > 20
    assert [name for name in commands if name not in COMMANDS_ONLY and FUNCTION_OF.get(name, name) not in PUBLIC] == []
    assert set(COMMANDS_ONLY) | set(FUNCTION_OF) <= set(commands)


def test_what_there_is_can_be_listed() -> None:
    assert "cage2" in remuda.list_games()
    assert {"auto", "sequential", "ray"} <= set(remuda.list_engines())
    assert {"ppo", "iqn", "random"} <= set(remuda.list_learners())
    assert remuda.list_settings()["game"].required
    assert remuda.list_settings()["seed"].default == 0
    assert remuda.list_settings("ppo")["lr"].description
    assert "agents" in remuda.list_settings("treasurehunt")
    with pytest.raises(remuda.RemudaError, match="'treasurehunt'"):
        remuda.list_settings("treasurehnt")


def test_a_directory_that_is_no_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(remuda.RemudaError, match=r"neither a study nor a sweep nor a search; `remuda\.resume`"):
        remuda.resume_study(tmp_path)


def test_sweeps_and_searches_refuse_what_they_cannot_run(tmp_path: Path) -> None:
    with pytest.raises(remuda.RemudaError, match="nothing is searched"):
        remuda.sweep("treasurehunt", tmp_path / "sweep", trials=1)
    with pytest.raises(remuda.RemudaError, match="game with workflows 'treasurehunt'"):
        remuda.search("treasurehunt", tmp_path / "search")
    with pytest.raises(remuda.RemudaError, match=r"total_episodes='many' .the search. should be"):
        remuda.search("cage2", tmp_path / "search", method="gp-ucb", total_episodes="many")
    assert list(tmp_path.iterdir()) == []


def test_a_board_answers_until_it_is_shut_down(tmp_path: Path) -> None:
    with pytest.raises(remuda.RemudaError, match="not a directory"):
        remuda.serve_board(tmp_path / "nowhere", open_browser=False)
    server = remuda.serve_board(tmp_path, open_browser=False)
    try:
        with urllib.request.urlopen(server.url, timeout=60) as page:
            assert b"remuda" in page.read()
    finally:
        server.shutdown()
        server.server_close()


def test_editors_and_type_checkers_see_the_same_names() -> None:
    tree = ast.parse((SOURCES / "__init__.py").read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    seen = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == set(PUBLIC) - {"__version__", "RemudaError"}


def test_everything_public_is_documented() -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    for name in PUBLIC:
        assert name == "__version__" or getattr(remuda, name).__doc__, name
        assert f"`{name}`" in page, name


def test_an_unknown_name_is_an_attribute_error_that_lists_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"'trane'; its names are .*train"):
        remuda.trane  # noqa: B018
    assert not hasattr(remuda, "__path_of_nothing__")


def test_importing_remuda_imports_nothing_heavy() -> None:
    assert run_python(f"import sys, remuda\nprint([name for name in {HEAVY} if name in sys.modules])") == "[]\n"


def test_a_name_is_imported_when_it_is_used() -> None:
    code = "import sys, remuda\nremuda.Options\nprint('torch' in sys.modules, 'pydantic' in sys.modules)"
    assert run_python(code) == "False True\n"


@pytest.mark.parametrize("first", ["gymnasium, remuda", "remuda, gymnasium, remuda_envs"])
def test_gymnasium_knows_our_games(first: str) -> None:
    """Where it was imported before us, and where remuda_envs was."""
    code = f"import {first}\nprint(gymnasium.spec('remuda/cage2-v0').kwargs)"
    assert run_python(code) == "{'game': 'cage2'}\n"


def test_gymnasium_takes_any_game() -> None:
    code = (
        "import gymnasium, remuda_envs\n"
        "env = gymnasium.make('remuda/game-v0', game='treasurehunt', agents=1)\n"
        "envs = gymnasium.make_vec('remuda/game-v0', num_envs=3, game='treasurehunt', agents=1)\n"
        "print(env.reset(seed=1)[0].shape, envs.reset(seed=1)[0].shape)"
    )
    assert run_python(code) == "(150,) (3, 150)\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_docs_and_examples_use_public_names_only(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"(?:from|import) remuda\.\S+", text) == []
    used = set(re.findall(r"(?<![\w./])remuda\.([A-Za-z_]\w*)", text))
    imported = {name.strip() for line in re.findall(r"from remuda import (.+)", text) for name in line.split(",")}
    groups = set(re.findall(r'entry-points\."remuda\.(\w+)"|group `remuda\.(\w+)`', text))  # of entry points, no names
    assert (used | imported) - set(PUBLIC) - {name for pair in groups for name in pair} == set()


def test_the_version_is_the_installed_one() -> None:
    from importlib.metadata import version

    assert remuda.__version__ == version("remuda-rl")


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
        (
            r"torch\.(manual_seed|seed|rand|randn|randint|randperm|bernoulli|normal|multinomial)\b",
            ("rng.py", "broken_learners.py"),
        ),
        (r"\.(random_|uniform_|normal_|bernoulli_|exponential_)\(", ()),
        (r"\buuid\b|os\.urandom|\bsecrets\b", ("trust.py", "tokens.py")),  # a key that nobody can guess
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
