"""Exports a trained agent: weights as safetensors, the network as a readable Python file, and both as ONNX."""

from __future__ import annotations

import inspect
import io
import logging
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from pprint import pformat
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import nn

from remuda.core import rng
from remuda.core.errors import ConfigError, RunError, StorageError
from remuda.core.game import Group, check_options
from remuda.core.policy import Policy
from remuda.games.registry import find_game
from remuda.learners.iqn.policy import IQNPolicy
from remuda.learners.ppo.policy import PPOPolicy
from remuda.learners.registry import SHIPPED_LEARNERS
from remuda.runs import export_modules as plain
from remuda.runs.directory import RunDirectory, to_json

WEIGHTS, NETWORK, ONNX = "weights.safetensors", "network.py", "policy.onnx"
EXTRA = ("onnx", "onnxscript")
HEAD = '''"""A trained agent, in plain torch: `load("{weights}")` makes it.

Input: float32, (batch, {frames}, {shape}): the agent's last {frames} observation(s) as the game shows them, in its own
units, oldest first. Observations before the agent's first one are zeros.

Output: float32, (batch, {actions}): {output}.

To choose an action as `remuda evaluate` does, take the largest output of those allowed: `choose(outputs, mask)`.
{besides}
{onnx} is the same network: input "frames", output "{name}".
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


@dataclass(frozen=True)
class ExportedAgent:
    """One trained agent as a plain torch module, and what its files say about it."""

    module: nn.Module
    arguments: dict[str, Any]  # the module was made with
    body: str | None  # module:Class of the user's own
    output: str  # its name
    meaning: str
    besides: str
    about: dict[str, Any]
    group: Group
    frames: int


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
    if folder.exists():
        raise ConfigError(f"out={folder} exists already: give a directory that does not")
    opened = RunDirectory.of(run, trust=trust)
    taken = take_out(opened, agent, checkpoint)
    weights = {name: tensor.clone() for name, tensor in taken.module.state_dict().items()}
    contents = {WEIGHTS: save(weights), NETWORK: source(taken).encode()}
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
    group = run.spec.groups[part.group]
    if group.action_space is not None:
        raise ConfigError(f"agent {agent} of {run.path} has actions {group.action_space}: export knows only Discrete")
    policy = run.policy([agent], group, "cpu", checkpoint)
    if isinstance(policy, PPOPolicy) and policy.network.body_columns:
        body = policy.network.options.body
        raise ConfigError(f"agent {agent} of {run.path} has body={body}: export writes PPO agents without a body only")
    about = {
        "game": run.plan.game,
        "options": run.plan.options,
        "agent": agent,
        "group": group.name,
        "learner": part.player,
        "checkpoint": run.checkpoint(checkpoint, only="policy").name,
    }
    if type(policy) not in MAKERS:
        raise ConfigError(
            f"agent {agent} of {run.path} has learner {part.player}, and export knows {' and '.join(SHIPPED_LEARNERS)} "
            "only: remuda.load(run).agent(number) acts with it, and checkpoints/*/policy.safetensors has its weights"
        )
    with rng.torch_seeded(np.uint64(0)):  # a new module draws random weights, which are then replaced
        return MAKERS[type(policy)](policy, about)


def _iqn(policy: IQNPolicy, about: dict[str, Any]) -> ExportedAgent:
    network = policy.network
    arguments = _shape(policy, network.scale) | {
        "layer": network.options.layer,
        "quantiles": network.options.acting_quantiles,
    }
    body = network.body
    if body is not None and not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", body.path):
        raise ConfigError(f"body={body.path!r} cannot be written as an import: name it module:Class")
    module = plain.IQNAgent(**arguments, body=None if body is None else body.new_module())
    return ExportedAgent(
        module=_filled(module, policy),
        arguments=arguments,
        body=None if body is None else body.path,
        output="values",
        meaning="the return the agent expects after each action, the mean over fixed quantiles",
        besides="",
        about=about,
        group=policy.group,
        frames=policy.frames,
    )


def _ppo(policy: PPOPolicy, about: dict[str, Any]) -> ExportedAgent:
    options = policy.network.options
    arguments = _shape(policy, policy.network.scale) | {
        "layers": options.layers,
        "activation": options.activation,
        "critic": options.critic == "obs",
    }
    return ExportedAgent(
        module=_filled(plain.PPOAgent(**arguments), policy),
        arguments=arguments,
        body=None,
        output="logits",
        meaning="logits of the actions",
        besides="To act as in training: draw from their softmax (forbidden actions at minus infinity).\n",
        about=about,
        group=policy.group,
        frames=policy.frames,
    )


MAKERS: dict[type[Policy], Callable[[Any, dict[str, Any]], ExportedAgent]] = {IQNPolicy: _iqn, PPOPolicy: _ppo}


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
    arguments = "".join(f"        {name}={value!r},\n" for name, value in agent.arguments.items())
    imports = ""
    if agent.body is not None:
        module, _, name = agent.body.partition(":")
        imports = f"\nfrom {module} import {name} as Body\n"
        shape = "obs_shape={obs_shape!r}, frames={frames!r}, width={layer!r}".format(**agent.arguments)
        arguments += f"        body=Body({shape}),\n"
    head = HEAD.format(
        weights=WEIGHTS,
        onnx=ONNX,
        frames=agent.frames,
        shape=", ".join(map(str, agent.group.obs_shape)),
        actions=agent.group.actions,
        output=agent.meaning,
        besides=agent.besides,
        name=agent.output,
        imports=imports,
        about=pformat(agent.about, width=110, sort_dicts=False),
    )
    code = f"{inspect.getsource(kind)}\n\n{inspect.getsource(plain.choose)}"
    return head + code + LOAD.format(kind=kind.__name__, arguments=arguments)


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

    example = torch.zeros((2, agent.frames, *agent.group.obs_shape))
    with (
        warnings.catch_warnings(action="ignore"),
        _quiet(logging.getLogger("torch.onnx")),
    ):  # the exporter warns about its own internals
        program = torch.onnx.export(
            agent.module,
            (example,),
            input_names=["frames"],
            output_names=[agent.output],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
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
