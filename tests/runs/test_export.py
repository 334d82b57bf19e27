"""A trained agent outside of remuda: the same numbers and the same actions, from three kinds of files."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

import remuda
from remuda.core.fragment import Fragment, Purpose
from remuda.core.game import make_game
from remuda.core.policy import Policy
from remuda.core.task import Task
from remuda.games.registry import find_game
from remuda.learners.iqn.policy import IQNPolicy
from remuda.learners.ppo.experience import frame_stacks
from remuda.learners.ppo.policy import PPOPolicy
from remuda.learners.stack import pad_frame_stacks
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.runs.export import NETWORK, ONNX, WEIGHTS, export
from remuda.runs.film import trained_bindings
from remuda.runs.run import Run

SMALL: dict[str, Any] = {
    "worlds": 3, "total_episodes": 12, "deterministic": True, "device": "cpu", "pictures": False,
    "evaluate_episodes": 3, "quiet": True,
}  # fmt: skip
HERDS: dict[str, dict[str, Any]] = {
    "iqn treasurehunt": {
        "game": "treasurehunt", "learner": "iqn", "agents": 2, "turns": 20, "spawn": 0.1,
        "layer": 17, "frames": 3, "batch_size": 8, "acting_quantiles": 5,
    },
    "ppo treasurehunt": {
        "game": "treasurehunt", "learner": "ppo", "agents": 2, "turns": 20, "spawn": 0.1, "frames": 2,
        "normalise_observations": True,
    },
    "iqn cage2": {"game": "cage2", "learner": "iqn", "steps": 20, "layer": 20, "batch_size": 8, "sigma": 0.0},
    "ppo cage2": {"game": "cage2", "learner": "ppo", "steps": 20, "layers": [19, 9], "activation": "relu"},
    "iqn masks": {"game": "remuda.testing:MASKED", "learner": "iqn", "layer": 9, "frames": 2, "batch_size": 8},
    "ppo colours": {"game": "remuda.testing:UNEQUAL", "learner": "ppo", "layers": [9]},
    "iqn own body": {
        "game": "treasurehunt", "learner": "iqn", "turns": 20, "layer": 12, "frames": 2, "batch_size": 8,
        "body": "export_bodies:Twice",
    },
}  # fmt: skip
BODY = '''"""A body of one's own."""

import torch
from torch import nn


class Twice(nn.Module):
    """Two layers, and a constant that is no parameter."""

    def __init__(self, obs_shape, frames, width):
        super().__init__()
        self.first = nn.Linear(frames * obs_shape[0], 6)
        self.second = nn.Linear(6, width)
        self.register_buffer("share", torch.full((1,), 0.5))

    def forward(self, x):
        return torch.tanh(self.second(torch.relu(self.first(x.flatten(1)) * self.share)))


class Lazy(nn.Module):
    """A body that learns the size of observations from the first one."""

    def __init__(self, obs_shape, frames, width):
        super().__init__()
        self.only = nn.LazyLinear(width)

    def forward(self, x):
        return torch.relu(self.only(x.flatten(1)))
'''


QUICK = ("iqn treasurehunt", "ppo cage2")
ODD = "remuda.testing.odd_games"
RECALL: dict[str, Any] = {"game": "remuda.testing.recall:RECALL", "symbols": 3, "delay": 2, "turns": 9}
KINDS: dict[str, dict[str, Any]] = {
    "ppo gru": {**RECALL, "learner": "ppo", "body": "gru", "features": 8, "frames": 2},
    "ppo lstm": {**RECALL, "learner": "ppo", "body": "lstm", "features": 8, "layers": [9], "critic": "both"},
    "iqn gru": {**RECALL, "learner": "iqn", "body": "gru", "layer": 8, "batch_size": 8},
    "iqn lstm": {**RECALL, "learner": "iqn", "body": "lstm", "layer": 8, "batch_size": 8, "frames": 2},
    "ppo cnn": {"game": f"{ODD}:BRIGHT_ROW", "learner": "ppo", "turns": 6, "body": "cnn", "features": 9, "frames": 2},
    "iqn cnn": {"game": f"{ODD}:BRIGHT_ROW", "learner": "iqn", "turns": 6, "body": "cnn", "layer": 9, "batch_size": 8},
    "ppo own lazy body": {"game": "treasurehunt", "learner": "ppo", "turns": 9, "body": "export_bodies:Lazy"},
    "box": {"game": f"{ODD}:STEERING", "learner": "ppo", "turns": 6},
    "box, predicted spread": {"game": f"{ODD}:STEERING", "learner": "ppo", "turns": 6, "spread": "predicted"},
    "multidiscrete": {"game": f"{ODD}:LEVERS", "learner": "ppo", "turns": 6, "body": "gru", "features": 8},
    "own off-policy": {"game": "treasurehunt", "learner": "dqn:DQN", "turns": 9, "frames": 2, "batch_size": 8},
    "own on-policy": {"game": "treasurehunt", "learner": "a2c:A2C", "turns": 9},
}
PROMISED = ("multidiscrete", "own off-policy")


@pytest.fixture(scope="module")
def herds(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs by name, each trained and exported once: the run, agent by agent its directory."""
    folder = tmp_path_factory.mktemp("herds")
    (folder / "export_bodies.py").write_text(BODY)
    made: dict[str, tuple[Run, list[Path]]] = {}

    def get(name: str) -> tuple[Run, list[Path]]:
        if name not in made:
            settings = {**SMALL, **(HERDS | KINDS)[name]}
            run = remuda.train(settings.pop("game"), out=folder / f"run {name}", **settings)
            outs = [folder / f"{name} {agent}" for agent in range(run.spec.agents)]
            for agent, out in enumerate(outs):
                export(run, agent, out)
            made[name] = run, outs
        return made[name]

    sys.path.append(str(folder))
    yield get
    sys.path.remove(str(folder))


def imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("network", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def played(run: Run, episodes: int = 4) -> list[Fragment]:
    """Greedy test episodes of the trained herd."""
    worlds = [episode % run.plan.worlds for episode in range(episodes)]
    game = make_game(find_game(run.plan.game), run.plan.options, worlds)
    player = Rollout(game, trained_bindings(run), RolloutConfig.of(run.plan))
    player.start(Task(tuple(range(episodes)), Purpose.TEST, exploration=0.0))
    return player.play(player.empty_fragments())


def of_agent(run: Run, agent: int) -> tuple[Any, Policy, int, int]:
    part = next(p for p in run.parts if p.herd_first <= agent < p.herd_first + p.agents)
    group = run.spec.groups[part.group]
    return group, run.policy([agent], group, "cpu"), part.group, agent - run.spec.first_agent(part.group)


def our_outputs(policy: Policy, rows: NDArray[Any]) -> NDArray[Any]:
    """What our own network computes of windows (rows, frames * obs): expected values, or logits."""
    with torch.no_grad():
        if isinstance(policy, IQNPolicy):
            net = policy.network
            x = pad_frame_stacks(rows[None], net.scale, net.inputs, net.device)
            k = net.options.acting_quantiles
            taus = ((torch.arange(k) + 0.5) / k).repeat(x.shape[1])[None]
            arrays = net.layout.arrays(torch.from_numpy(policy.rows[:, :-1]))
            quantiles = net.quantiles(arrays, net.features(arrays, x), taus, None)
            return quantiles.mean(dim=2)[0, : len(rows)].numpy()
        assert isinstance(policy, PPOPolicy)
        network = policy.network
        x = pad_frame_stacks(rows[None], network.scale, network.inputs, network.device)
        return network.logits(policy.agent_arrays(0, 1), x, None)[0, : len(rows), : network.actions].numpy()


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in HERDS]
)
def test_all_three_agree_with_our_policy_on_real_episodes(herds: Any, name: str) -> None:
    run, outs = herds(name)
    fragments = played(run)
    for agent, out in enumerate(outs):
        group, policy, g, i = of_agent(run, agent)
        fragment = fragments[g]
        alive = fragment.alive[:, :, i]
        seen = frame_stacks(fragment, policy.frames)[:, :, i][alive]  # (rows, frames * obs), oldest first
        frames = seen.reshape(len(seen), policy.frames, *group.obs_shape).astype(np.float32)
        ours = our_outputs(policy, seen)

        module = imported(out / NETWORK)
        network = module.load(str(out / WEIGHTS))
        with torch.no_grad():
            theirs = network(torch.from_numpy(frames))
        session = onnxruntime.InferenceSession((out / ONNX).read_bytes(), providers=["CPUExecutionProvider"])
        (onnx_,) = session.run(None, {"frames": frames})

        assert ours.shape == theirs.shape == onnx_.shape == (alive.sum(), group.actions)
        tolerance = {"rtol": 1e-4, "atol": 1e-5}
        np.testing.assert_allclose(theirs.numpy(), ours, **tolerance)
        np.testing.assert_allclose(onnx_, ours, **tolerance)
        mask = None if fragment.mask is None else torch.from_numpy(fragment.mask[:-1, :, i][alive])
        acted = fragment.actions[:, :, i][alive]
        assert np.array_equal(module.choose(theirs, mask).numpy(), acted)
        assert np.array_equal(module.choose(torch.from_numpy(onnx_), mask).numpy(), acted)
        (alone,) = session.run(None, {"frames": frames[:1]})
        np.testing.assert_allclose(alone, ours[:1], **tolerance)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in HERDS]
)
def test_the_state_dict_has_the_names_and_numbers_of_the_checkpoint(herds: Any, name: str) -> None:
    run, outs = herds(name)
    for agent, out in enumerate(outs):
        state = load_file(out / WEIGHTS)
        _, policy, _, _ = of_agent(run, agent)
        (weights,) = policy.weights()
        plain = {key: array for key, array in weights.items() if "sigma" not in key}
        assert set(plain) <= set(state)
        assert set(state) - set(plain) <= {"body.share"}
        assert all(np.array_equal(state[key].numpy(), array) for key, array in plain.items())


def test_agents_are_different(herds: Any) -> None:
    _, outs = herds("iqn treasurehunt")
    a, b = (load_file(out / WEIGHTS)["head.weight"] for out in outs)
    assert not torch.equal(a, b)


def exported_networks(out: Path) -> list[Any]:
    """The network in ONNX and, where there is one, in the Python file: frames and state in, outputs and state out."""
    session = onnxruntime.InferenceSession((out / ONNX).read_bytes(), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    networks = [lambda *inputs: session.run(None, dict(zip(names, inputs, strict=True)))]
    if (out / NETWORK).exists():
        network = imported(out / NETWORK).load(str(out / WEIGHTS))

        def answer(*inputs: NDArray[np.float32]) -> list[NDArray[np.float32]]:
            with torch.no_grad():
                found = network(*map(torch.from_numpy, inputs))
            return [own.numpy() for own in (found if isinstance(found, tuple) else (found,))]

        networks.append(answer)
    return networks


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.promise if name in PROMISED else pytest.mark.slow) for name in KINDS],
)
def test_agents_with_memories_bodies_and_other_actions_act_as_in_remuda(herds: Any, name: str) -> None:
    run, (out, *_) = herds(name)
    group, policy, _, _ = of_agent(run, 0)
    networks = exported_networks(out)
    assert len(networks) == (1 if name.startswith("own") else 2)
    start = [np.zeros((1, policy.memory_size), np.float32)] if policy.memory_size else []
    for network in networks:
        agent, state, noise = run.agent(0), start, np.random.default_rng(7)
        frames = np.zeros((1, policy.frames, *group.obs_shape), np.float32)
        for _ in range(8):
            seen = (noise.random(group.obs_shape) * min(group.high, 3)).astype(group.obs_dtype)
            frames = np.concatenate([frames[:, 1:], seen[None, None].astype(np.float32)], axis=1)
            outputs, *state = network(frames, *state)
            expected = agent.act(seen)
            if name.startswith("box"):
                np.testing.assert_allclose(outputs[0].reshape(expected.shape), expected, rtol=1e-4, atol=1e-5)
            else:
                parts = np.split(outputs[0], np.cumsum(group.choices)[:-1])
                assert [int(part.argmax()) for part in parts] == np.atleast_1d(expected).tolist()


@pytest.mark.promise
@pytest.mark.parametrize("name", QUICK)
def test_the_files_need_no_remuda_and_say_how_to_use_them(herds: Any, name: str, tmp_path: Path) -> None:
    run, (out, *_) = herds(name)
    text = (out / NETWORK).read_text(encoding="utf-8")
    assert not any("remuda" in line for line in text.splitlines() if line.startswith(("import", "from")))
    docstring = imported(out / NETWORK).__doc__ or ""
    for word in ("Input", "oldest first", "Output", "choose", WEIGHTS, ONNX):
        assert word in docstring
    code = (
        "import sys, torch, network\n"
        f"net = network.load({str(out / WEIGHTS)!r})\n"
        f"print(network.choose(net(torch.zeros(3, {run.policy([0], run.spec.groups[0], 'cpu').frames}, "
        f"*{run.spec.groups[0].obs_shape}))).shape)\n"
        "assert not any(name.split('.')[0] == 'remuda' for name in sys.modules)\n"
    )
    script = tmp_path / "use.py"
    script.write_text(f"import sys; sys.path[:0] = [{str(out)!r}, {str(out.parent)!r}]\n{code}")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, env={})
    assert done.returncode == 0, done.stderr
    assert "[3]" in done.stdout


def test_the_onnx_file_has_no_paths_of_whoever_made_it(herds: Any) -> None:
    _, outs = herds("iqn treasurehunt")
    content = (outs[0] / ONNX).read_bytes()
    assert str(Path(remuda.__file__).parent).encode() not in content
    assert b".py" not in content
    model = onnx.load(outs[0] / ONNX)
    facts = json.loads(next(p.value for p in model.metadata_props if p.key == "remuda"))
    assert (facts["game"], facts["agent"], facts["learner"]) == ("treasurehunt", 0, "iqn")


def test_export_leaves_torch_s_own_stream_alone(herds: Any, tmp_path: Path) -> None:
    run, _ = herds("ppo cage2")
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    export(run, 0, tmp_path / "out")
    assert torch.equal(torch.rand(4), expected)


def test_the_command(cli: Any, herds: Any, tmp_path: Path) -> None:
    run, _ = herds("ppo cage2")
    out = tmp_path / "a" / "b"
    done = cli("export", run.path, "--agent", "0", "--out", out)
    assert (done.code, done.err) == (0, "")
    assert done.out.split() == [str(out / name) for name in (WEIGHTS, NETWORK, ONNX)]
    again = cli("export", run.path, "--out", out)
    assert again.code == 2
    assert "exists already" in again.err


def test_mistakes_are_one_line(cli: Any, herds: Any, trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = herds("ppo cage2")
    mixed = trained(learners={1: "random"})
    cases = [
        (["export", "nowhere"], "nowhere"),
        (["export", run.path, "--agent", "1"], "no agent 1"),
        (["export", run.path, "--agent", "-1"], "--agent"),
        (["export", run.path, "--checkpoint", "7"], "--checkpoint 000000012"),
        (["export", mixed.path, "--agent", "1"], "random"),
    ]
    for words, match in cases:
        done = cli(*words)
        assert done.code == 2, words
        assert len(done.err.splitlines()) == 1
        assert match in done.err
    assert list(Path().iterdir()) == []
    monkeypatch.setattr("remuda.runs.export.find_spec", lambda name: None if name == "onnxscript" else object())
    done = cli("export", run.path)
    assert done.code == 0
    assert done.err == "no ONNX file: it needs `pip install 'remuda-rl[export]'`\n"
    assert sorted(path.name for path in Path("agent").iterdir()) == ["network.py", "weights.safetensors"]


@pytest.mark.promise
def test_without_the_extra_an_agent_of_ones_own_learner_is_written_as_weights(
    cli: Any, herds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = herds("own off-policy")
    monkeypatch.setattr("remuda.runs.export.find_spec", lambda name: None)
    done = cli("export", run.path, "--trust")
    assert (done.code, done.err) == (0, "no ONNX file: it needs `pip install 'remuda-rl[export]'`\n")
    assert [path.name for path in Path("agent").iterdir()] == ["weights.safetensors"]
