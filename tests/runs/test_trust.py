"""Names of code in a run directory are followed only for the person who made it, or who says so."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import remuda
from remuda.runs import trust

GAME = """
from pathlib import Path
import gymnasium, numpy
import torch
Path(__file__).with_name("imported").touch()

class Walk(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def __init__(self, note=""):
        if note:
            Path(note).touch()
    def reset(self, *, seed=None, options=None):
        return numpy.zeros(2, numpy.float32), {}
    def step(self, action):
        return numpy.zeros(2, numpy.float32), 1.0, False, False, {}

def make(note=""):
    return Walk(note)

def text(cmd="") -> str:
    Path(cmd).touch()
    return cmd

class NoGame:
    def __init__(self, cmd=""):
        Path(cmd).touch()

class Body(torch.nn.Linear):
    def __init__(self, obs_shape, frames, width):
        super().__init__(2 * frames, width)
    def forward(self, x):
        return super().forward(x.flatten(1))
"""
MODULE = "strange_game"
PLAN: dict[str, Any] = {
    "worlds": 2, "total_episodes": 4, "turns": 3, "learner": "ppo", "layers": [4], "pictures": False,
    "evaluate_episodes": 2, "device": "cpu",
}  # fmt: skip
REFUSED = r"would import '\w+:\w+', and .*: if you know this code, add --trust \(in Python trust=True\)"


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with a game, which leaves a file beside it when it is imported."""
    folder = tmp_path_factory.mktemp("code")
    (folder / f"{MODULE}.py").write_text(GAME)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield folder


@pytest.fixture(scope="module")
def trained(code: Path, tmp_path_factory: pytest.TempPathFactory) -> remuda.Run:
    """A run of that game, trained by this user."""
    return remuda.train(f"{MODULE}:make", out=tmp_path_factory.mktemp("trained") / "run", quiet=True, **PLAN)


@pytest.fixture
def run(trained: remuda.Run, code: Path, tmp_path: Path) -> Path:
    """A copy of the run, whose game was not imported yet."""
    shutil.copytree(trained.path, tmp_path / "run")
    sys.modules.pop(MODULE, None)
    (code / "imported").unlink(missing_ok=True)
    return tmp_path / "run"


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """To somebody else the runs of this user are those of a stranger."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "somebody else"))


def _edit(folder: Path, **changes: Any) -> None:
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, **changes}))


READERS: dict[str, Callable[[Path, Path, bool], Any]] = {
    "evaluate": lambda run, out, trust: remuda.evaluate(run, 1, trust=trust),
    "record": lambda run, out, trust: remuda.record(run, out / "r.npz", 1, trust=trust),
    "export": lambda run, out, trust: remuda.export(run, 0, out / "agent", trust=trust),
    "resume": lambda run, out, trust: remuda.resume(run, total_episodes=6, quiet=True, trust=trust),
    "load": lambda run, out, trust: remuda.load(run, trust=trust).agent(0),
    "a frozen player": lambda run, out, trust: remuda.evaluate(
        "gymnasium:CartPole-v1", 1, learner=f"frozen:{run}/0", trust=trust
    ),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_strangers_run_imports_nothing(run: Path, code: Path, tmp_path: Path, stranger: None, reader: str) -> None:
    read = READERS[reader]
    with pytest.raises(remuda.RemudaError, match=REFUSED):
        read(run, tmp_path, False)
    assert not (code / "imported").exists()
    if reader == "a frozen player":  # it sees something else, which is found out after it is trusted
        with pytest.raises(remuda.RemudaError, match="here they would see"):
            read(run, tmp_path, True)
    else:
        read(run, tmp_path, True)
    assert (code / "imported").exists()


@pytest.mark.parametrize("reader", [name for name in READERS if name != "a frozen player"])
def test_ones_own_run_is_followed_also_after_it_was_moved(run: Path, tmp_path: Path, reader: str) -> None:
    moved = tmp_path / "elsewhere"
    shutil.move(run, moved)
    READERS[reader](moved, tmp_path, False)


@pytest.mark.parametrize("command", ["evaluate", "watch", "record", "export", "resume"])
def test_every_command_refuses_with_one_sentence(
    run: Path, code: Path, cli: Callable[..., Any], stranger: None, command: str
) -> None:
    done = cli(command, run)
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert "--trust" in done.err
    assert not (code / "imported").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"game": "subprocess:getoutput", "options": {"cmd": "touch {hit}"}},
        {"game": "gymnasium:{module}:Walk-v0", "options": {}},
        {"game": "gymnasium:GymV26Environment-v0", "options": {"arguments": {"env_id": "{module}:Walk-v0"}}},
        {"game": "treasurehunt", "options": {}, "learner": "{module}:Body"},
        {"game": "treasurehunt", "options": {}, "learners": {"0": "{module}:Body"}},
        {
            "game": "treasurehunt",
            "options": {},
            "learner": "iqn",
            "learner_options": {"iqn": {"body": "{module}:Body"}},
        },
        {"game": "treasurehunt", "options": {}, "learner_options": {}, "callbacks": ["{module}:make"]},
        {"options": {"note": "{hit}"}},
    ],
    ids=str,
)
def test_an_edited_config_is_no_longer_ones_own(run: Path, code: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    hit = tmp_path / "hit"
    text = yaml.safe_dump(changes).replace("{hit}", str(hit)).replace("{module}", MODULE)
    _edit(run, **yaml.safe_load(text))
    for command in (remuda.evaluate, remuda.resume):
        with pytest.raises(remuda.RemudaError, match="would import"):
            command(run)
    assert not hit.exists()
    assert not (code / "imported").exists()


def test_a_stolen_signature_does_not_fit_other_settings(run: Path, tmp_path: Path) -> None:
    forged = tmp_path / "forged"
    shutil.copytree(run, forged)
    _edit(forged, game=f"{MODULE}:NoGame")
    with pytest.raises(remuda.RemudaError, match="its settings were edited"):
        remuda.evaluate(forged)


@pytest.mark.parametrize("name", ["text", "NoGame"])
def test_what_makes_no_environment_is_not_called_even_if_trusted(run: Path, tmp_path: Path, name: str) -> None:
    hit = tmp_path / "hit"
    _edit(run, game=f"{MODULE}:{name}", options={"cmd": str(hit)})
    with pytest.raises(remuda.RemudaError, match="environment"):
        remuda.evaluate(run, trust=True)
    assert not hit.exists()


@pytest.mark.parametrize("name", ["subprocess:getoutput", "os:abort", "builtins:exec", "os.path:join"])
def test_python_itself_is_never_called(name: str) -> None:
    with pytest.raises(remuda.RemudaError, match="part of Python itself"):
        remuda.train(name, learner="ppo")


def test_without_a_home_a_run_is_trained_and_says_that_it_is_not_signed(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    run = remuda.train(f"{MODULE}:Walk", out=tmp_path / "run", quiet=True, **PLAN)
    assert "you have no home directory: set XDG_CONFIG_HOME" in (run.path / "console.log").read_text()
    assert run.evaluate(2).returns.shape == (2, 1)  # this process made it
    with pytest.raises(remuda.RemudaError, match="you have no home directory"):
        remuda.evaluate(run.path)


def test_the_key_is_readable_by_its_user_alone_and_made_only_if_code_is_named(
    code: Path, tmp_path: Path, tiny: dict[str, Any], stranger: None
) -> None:
    key = tmp_path / "somebody else" / "remuda" / "key"
    remuda.train("treasurehunt", out=tmp_path / "shipped", quiet=True, **tiny)
    assert not key.exists()
    run = remuda.train(f"{MODULE}:make", out=tmp_path / "run", quiet=True, **PLAN)
    assert key.stat().st_mode & 0o777 == 0o600
    assert list(key.parent.iterdir()) == [key]
    key.chmod(0o644)
    with pytest.raises(remuda.RemudaError, match="chmod 600"):
        remuda.evaluate(run.path)


def test_a_run_resumed_with_trust_is_ones_own_from_then_on(run: Path, stranger: None) -> None:
    remuda.resume(run, total_episodes=6, quiet=True, trust=True)
    assert remuda.evaluate(run, 2).returns.shape == (2, 1)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"game": "treasurehunt", "learner_options": {"iqn": {"epsilon": "1:0.1:0.5"}}}, []),
        ({"game": "gymnasium:CartPole-v1", "learners": {"0": "frozen:runs_a"}}, []),
        ({"game": "session:Walk-18f-1", "address": "ray://host:6379", "warm_start": "runs/a"}, []),
        ({"game": "own.module:ENTRY", "callbacks": ["wandb", "mine:Log"]}, ["mine:Log", "own.module:ENTRY"]),
        ({"game": "treasurehunt", "learner_options": {"own:Learner": {}}}, ["own:Learner"]),
        ({"settings": {"game": ["gymnasium:CartPole-v1", "gymnasium:own:Env-v0"]}}, ["gymnasium:own:Env-v0"]),
        ({"settings": {"game": "gymnasium:A-v0", "env_id": "own:B-v0", "lr": "1:0.1"}}, ["own:B-v0"]),
    ],
)
def test_names_of_code_are_found_wherever_they_stand(settings: dict[str, Any], names: list[str]) -> None:
    assert trust.names_of_code(settings) == names


def test_a_learner_with_options_of_its_own_is_a_name_of_code_too() -> None:
    """`ppo@0` tells agents of one algorithm apart; what stands before the `@` is imported."""
    assert "strange_game:Body" in trust.names_of_code({"learners": {"0": "strange_game:Body@0"}})
    assert trust.names_of_code({"learners": {"0": "ppo@0", "1": "frozen:runs/a@b:c/0"}}) == []
