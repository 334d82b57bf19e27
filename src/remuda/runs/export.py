"""Exports a trained agent: weights as safetensors, the network as a readable Python file, and both as ONNX."""

from __future__ import annotations

import inspect
import io
import logging
import math
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from pprint import pformat
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save
from torch import nn

from remuda.core import rng
from remuda.core.errors import ConfigError, RunError, StorageError
from remuda.core.game import Group, check_options
from remuda.core.paths import exists
from remuda.core.policy import Policy
from remuda.games.registry import find_game
from remuda.learners.bodies import SHIPPED_BODIES
from remuda.learners.body import Body
from remuda.learners.iqn.policy import IQNPolicy
from remuda.learners.ppo.actions import GaussianHead
from remuda.learners.ppo.policy import PPOPolicy
from remuda.learners.single_agent.policy import GreedyPolicy, SampledPolicy, SingleAgentPolicy
from remuda.learners.stack import input_scale
from remuda.runs import export_modules as plain
from remuda.runs.directory import RunDirectory, to_json

WEIGHTS, NETWORK, ONNX = "weights.safetensors", "network.py", "policy.onnx"
EXTRA = ("onnx", "onnxscript")
HEAD = '''"""A trained agent, in plain torch: `load("{weights}")` makes it.

Input: float32, (batch, {frames}, {shape}): the agent's last {frames} observation(s) as the game shows them, in its own
units, oldest first. Observations before the agent's first one are zeros.
{layout}
Output: float32, (batch, {actions}): {output}.

{choosing}
{memory}
{onnx} is the same network: {inputs} in, {outputs} out.
"""


import math

import torch
from torch import Tensor, nn
{imports}
ABOUT = {about}


'''
LOAD = '''

def load(path: str) -> {kind}:
    """The network with its trained weights, from a safetensors file."""
    from safetensors.torch import load_file

    network = {kind}(
{arguments}    )
    network.load_state_dict(load_file(path))
    return network.eval()
'''


LARGEST = (
    "To choose an action as `remuda evaluate` does, take the largest output of those allowed: `choose(outputs, mask)`."
)
DRAWN = "To act as in training: draw from their softmax (forbidden actions at minus infinity)."
MEMORY = """
It has a memory: `outputs, state = network(frames, state)`. The state, (batch, {size}), is zeros when a life begins;
give the next one with the next observation.
"""


class OutputText(NamedTuple):
    """What a network's output is called and means, and the function that chooses an action by it."""

    name: str
    size: int
    meaning: str
    choosing: str
    chooser: Callable[..., Any] = plain.choose


@dataclass(frozen=True)
class ExportedAgent:
    """One trained agent as a plain torch module, and what its files say about it."""

    module: nn.Module
    weights: dict[str, NDArray[np.float32]]
    about: dict[str, Any]
    group: Group
    frames: int
    output: OutputText
    arguments: dict[str, Any] = field(default_factory=dict)  # the module was made with; none: no file can make it
    body: Body | None = None
    state_size: int = 0


def export(
    run: RunDirectory | Path | str,
    agent: int = 0,
    out: Path | str = "agent",
    checkpoint: str | None = None,
    *,
    trust: bool = False,
) -> list[Path]:
    """Write a trained agent into a directory that must not exist yet; returns the files.

    They are its weights, a readable torch module and, if the extra `export` is installed, ONNX; none of them needs
    remuda. A game may add what the network needs around it, such as the memory of a defender of cage2.
    """
    folder = Path(out)
    if exists(folder):
        raise ConfigError(f"out={folder} exists already: give a directory that does not")
    opened = RunDirectory.of(run, trust=trust)
    taken = take_out(opened, agent, checkpoint)
    contents = {WEIGHTS: save({name: torch.from_numpy(array) for name, array in taken.weights.items()})}
    if taken.arguments:
        contents[NETWORK] = source(taken).encode()
    if onnx_available():
        contents[ONNX] = as_onnx(taken)
    entry = find_game(opened.plan.game)
    files = entry.exported_files(check_options(entry, opened.plan.options))
    contents |= {name: text.encode() for name, text in files.items()}
    try:
        folder.mkdir(parents=True)
        for name, content in contents.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise StorageError(f"{folder} cannot be written: {error.strerror or error}") from None
    return [folder / name for name in contents]


def onnx_available() -> bool:
    """Whether the packages that write ONNX are installed."""
    return all(find_spec(name) for name in EXTRA)


def take_out(run: RunDirectory, agent: int, checkpoint: str | None = None) -> ExportedAgent:
    """An agent of a run as a plain module with its trained weights."""
    if not 0 <= agent < run.spec.agents:
        raise RunError(f"{run.path} has no agent {agent}: it has agents 0 to {run.spec.agents - 1}")
    part = next(p for p in run.parts if p.herd_first <= agent < p.herd_first + p.agents)
    if not part.learns:
        raise RunError(f"agent {agent} of {run.path} is {part.player}, which was not trained there: give another agent")
    policy = run.policy([agent], run.spec.groups[part.group], "cpu", checkpoint)
    about = {
        "game": run.plan.game,
        "options": run.plan.options,
        "agent": agent,
        "group": policy.group.name,
        "learner": part.player,
        "checkpoint": run.checkpoint(checkpoint, only="policy").name,
    }
    if type(policy) not in MAKERS:
        raise ConfigError(
            f"agent {agent} of {run.path} has learner {part.player}, whose policy export does not know: "
            "remuda.load(run).agent(number) acts with it, and checkpoints/*/policy.safetensors has its weights"
        )
    with rng.torch_seeded(np.uint64(0)):  # a new module draws random weights, which are then replaced
        return MAKERS[type(policy)](policy, about)


def _iqn(policy: IQNPolicy, about: dict[str, Any]) -> ExportedAgent:
    network, options, actions = policy.network, policy.network.options, policy.group.actions
    arguments = _shape(policy, network.scale) | {"layer": options.layer, "quantiles": options.acting_quantiles}
    if network.cell is not None:
        arguments["memory"] = network.cell.kind
    meaning = "the return the agent expects after each action, the mean over fixed quantiles"
    module = _filled(plain.IQNAgent(**arguments, body=_new_body(network.body)), policy)
    output = OutputText("values", actions, meaning, LARGEST)
    return _exported(policy, module, about, output, arguments, network.body)


def _ppo(policy: PPOPolicy, about: dict[str, Any]) -> ExportedAgent:
    network, options = policy.network, policy.network.options
    arguments = _shape(policy, network.scale) | {
        "actions": network.actor_outputs,
        "layers": options.layers,
        "activation": options.activation,
        "critic": options.critic == "obs",
    }
    if network.body_columns:
        arguments["width"] = options.features
    if network.cell is not None:
        arguments["memory"] = network.cell.kind
    if isinstance(network.head, GaussianHead):
        arguments["bounds"] = _bounds(network.head)
    module = _filled(plain.PPOAgent(**arguments, body=_new_body(network.body)), policy)
    return _exported(policy, module, about, _ppo_output(policy), arguments, network.body)


def _ppo_output(policy: PPOPolicy) -> OutputText:
    head, group = policy.network.head, policy.group
    if head is None:
        return OutputText("logits", group.actions, "logits of the actions", f"{LARGEST}\n{DRAWN}")
    if isinstance(head, GaussianHead):
        meaning = f"the numbers of the action, whose shape is {group.action_shape}"
        choosing = "This is the action as `remuda evaluate` takes it: the mean, squashed between its bounds."
        return OutputText("action", head.size, meaning, choosing)
    choosing = f"To choose as `remuda evaluate` does: `choose_parts(outputs, {list(group.choices)})`."
    return OutputText("logits", head.outputs, "logits of each part's choices", choosing, plain.choose_parts)


def _own(policy: SingleAgentPolicy, about: dict[str, Any]) -> ExportedAgent:
    """Of a learner for one agent, whose network only its author's file can make: ONNX, without a Python file."""
    (weights,) = policy.weights()
    network = policy.module.new_module()
    network.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()}, strict=False)
    module = plain.OwnAgent(network, policy.scores, input_scale(policy.group)).eval()
    output = OutputText("scores", policy.group.actions, "", "")
    return ExportedAgent(module, weights, about, policy.group, policy.frames, output)


def _exported(
    policy: Policy, module: nn.Module, about: dict[str, Any], output: OutputText, arguments: dict[str, Any], body: Any
) -> ExportedAgent:
    weights = {name: tensor.clone().numpy() for name, tensor in module.state_dict().items()}
    return ExportedAgent(
        module, weights, about, policy.group, policy.frames, output, arguments, body, policy.memory_size
    )


MAKERS: dict[type[Policy], Callable[[Any, dict[str, Any]], ExportedAgent]] = {
    IQNPolicy: _iqn,
    PPOPolicy: _ppo,
    GreedyPolicy: _own,
    SampledPolicy: _own,
}


def _new_body(body: Body | None) -> nn.Module | None:
    """A new module of a body that a file can name."""
    if body is None:
        return None
    if body.path not in SHIPPED_BODIES and not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", body.path):
        raise ConfigError(f"body={body.path!r} cannot be written as an import: name it module:Class")
    return body.new_module()


def _bounds(head: GaussianHead) -> list[tuple[float | None, float | None]]:
    """The bounds of each number; None where there is none."""
    pairs = zip(head.low.tolist(), head.high.tolist(), strict=True)
    return [(low if math.isfinite(low) else None, high if math.isfinite(high) else None) for low, high in pairs]


def _shape(policy: Policy, scale: float) -> dict[str, Any]:
    group = policy.group
    return {"obs_shape": group.obs_shape, "frames": policy.frames, "actions": group.actions, "scale": scale}


def _filled(module: nn.Module, policy: Policy) -> nn.Module:
    """The module with the policy's weights."""
    (weights,) = policy.weights()
    own = module.state_dict()  # without the noise, and without a critic that sees more than the agent
    module.load_state_dict({**own, **{n: torch.from_numpy(a) for n, a in weights.items() if n in own}})
    return module.eval()


def source(agent: ExportedAgent) -> str:
    """The network as a Python file that imports torch and safetensors only."""
    kind = type(agent.module)
    helpers: list[Any] = [plain.MemoryCell] if agent.state_size else []
    arguments, imports = "".join(f"        {name}={value!r},\n" for name, value in agent.arguments.items()), ""
    if agent.body is not None:
        shipped = SHIPPED_BODIES.get(agent.body.path)
        helpers += [shipped] if shipped else []
        if shipped is None:
            imports = "\nfrom {} import {} as Body\n".format(*agent.body.path.split(":"))
        shape = f"obs_shape={agent.group.obs_shape!r}, frames={agent.frames}, width={agent.body.width}"
        arguments += f"        body={shipped.__name__ if shipped else 'Body'}({shape}),\n"
    head = HEAD.format(
        weights=WEIGHTS,
        onnx=ONNX,
        frames=agent.frames,
        layout=_layout(agent.group),
        shape=", ".join(map(str, agent.group.obs_shape)),
        actions=agent.output.size,
        output=agent.output.meaning,
        choosing=agent.output.choosing,
        memory=MEMORY.format(size=agent.state_size) if agent.state_size else "",
        inputs=" and ".join(f'"{name}"' for name in _names(agent)[0]),
        outputs=" and ".join(f'"{name}"' for name in _names(agent)[1]),
        imports=imports,
        about=pformat(agent.about, width=110, sort_dicts=False),
    )
    code = "\n\n".join(inspect.getsource(each) for each in (*helpers, kind, agent.output.chooser))
    return head + code + LOAD.format(kind=kind.__name__, arguments=arguments)


def _layout(group: Group) -> str:
    """What each number of an observation is, where the environment shows parts that remuda flattened."""
    if group.raw_space is None or len(group.obs_shape) > 1:  # an image beside a mask is shown as it is
        return ""
    from remuda.adapters.inbound.spaces import FlatSpace  # imports gymnasium

    lines = "".join(f"    {line}\n" for line in FlatSpace(group.raw_space, group.name).layout())
    return f"\nThe environment's observation was flattened (gymnasium.spaces.flatten):\n\n{lines}"


def _names(agent: ExportedAgent) -> tuple[list[str], list[str]]:
    """Inputs and outputs of the ONNX file."""
    if agent.state_size:
        return ["frames", "state"], [agent.output.name, "next_state"]
    return ["frames"], [agent.output.name]


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """Let a logger report errors only."""
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def as_onnx(agent: ExportedAgent) -> bytes:
    """The network as ONNX, for any number of rows at once."""
    import onnx

    example: tuple[torch.Tensor, ...] = (torch.zeros((2, agent.frames, *agent.group.obs_shape)),)
    inputs, outputs = _names(agent)
    if agent.state_size:
        example += (torch.zeros((2, agent.state_size)),)
    rows = torch.export.Dim("batch")
    with (
        warnings.catch_warnings(action="ignore"),
        _quiet(logging.getLogger("torch.onnx")),
    ):  # the exporter warns about its own internals
        program = torch.onnx.export(
            agent.module,
            example,
            input_names=inputs,
            output_names=outputs,
            dynamic_shapes=({0: rows},) * len(inputs),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    for thing in (*model.graph.node, *model.graph.value_info, *model.graph.initializer, model.graph):
        del thing.metadata_props[:]  # paths of source files on this machine
    onnx.helper.set_model_props(model, {"remuda": to_json(agent.about)})
    onnx.checker.check_model(model)
    file = io.BytesIO()
    onnx.save(model, file)
    return file.getvalue()
