"""A defender's memory and actions as one plain Python file, for an exported agent: it needs numpy, and no remuda."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from remuda.games.cage2 import memory
from remuda.games.cage2.options import Cage2Options

FILE = "defender.py"
ARRAYS = (
    "STATIC_PORTS", "CHECK_PORT", "DECOY_PORT", "FITS", "PAIRS", "PAIR_ACTIONS", "PLAIN_ACTIONS", "DECOY_HOSTS",
)  # fmt: skip
NUMBERS = (
    "N_HOSTS", "N_DECOYS", "N_PAIRS", "N_COMPACT", "FIRST_DECOY_ACTION", "NEVER", "NOBODY", "LONGEST", "NEAR", "FAST",
    "SLOW", "FADED", "PER_HOST", "VERB_KINDS", "SINCE_ACTIVITY", "PER_PAIR", "FEATURES",
)  # fmt: skip
FUNCTIONS: tuple[Callable[..., Any], ...] = (
    memory.forget,
    memory.remember,
    memory.remember_action,
    memory.remember_activity,
    memory.freshness,
    memory.write_features,
    memory.write_host,
    memory.next_pair,
    memory.full_action,
    memory.write_mask,
)
HEAD = '''"""A trained defender of CAGE Challenge 2 with its memory, in plain numpy and torch.

    defender = Defender("weights.safetensors")
    action = defender.get_action(bits)      # the 52 bits of BlueTableWrapper in, one of the 145 actions out
    defender.end_episode()

It has the methods that the challenge's evaluation calls: it plays in CybORG as it is. It needs `network.py` beside it.
"""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np

SEES_MEMORY, HAS_COMPACT_ACTIONS = {sees_memory}, {compact}
'''
CLASS = '''

class Defender:
    """Remembers what it saw and did, and chooses the best action by its network."""

    def __init__(self, weights: str) -> None:
        spec = spec_from_file_location("network", Path(__file__).with_name("network.py"))
        self.code = module_from_spec(spec)
        spec.loader.exec_module(self.code)
        self.network = self.code.load(weights)
        self.memory = np.zeros(1, MEMORY)[0]
        self.end_episode()

    def end_episode(self) -> None:
        """Forget everything: the next observation is the first of an episode."""
        forget(self.memory)
        self.action = None

    def get_action(self, observation: Any, action_space: Any = None) -> int:
        """The action, one of the 145, after the 52 bits that were seen now."""
        bits = np.asarray(observation).astype(np.int64)
        if self.action is not None:
            remember(self.memory, bits, self.action)
        self.action = int(self.choose(bits))
        return self.action

    def choose(self, bits: Any) -> int:
        """The best action by the network."""
        torch = self.code.torch
        inputs = np.zeros(FEATURES, np.float32)
        if SEES_MEMORY:
            write_features(self.memory, inputs)
        else:
            inputs = bits.astype(np.float32)
        mask = np.ones(N_COMPACT, np.bool_)
        write_mask(self.memory, mask)
        with torch.no_grad():
            outputs = self.network(torch.from_numpy(inputs)[None, None])
        allowed = torch.from_numpy(mask)[None] if HAS_COMPACT_ACTIONS else None
        best = int(self.code.choose(outputs, allowed)[0])
        return full_action(self.memory, best) if HAS_COMPACT_ACTIONS else best
'''


def exported_files(options: Cage2Options) -> dict[str, str]:
    """What an exported defender needs besides its network: nothing if it sees plain bits and has the plain actions."""
    if not options.needs_memory or options.observation == "truth" or options.workflow is not None:
        return {}
    parts = [HEAD.format(sees_memory=options.observation == "memory", compact=options.actions == "compact")]
    parts += [f"{name} = {getattr(memory, name)!r}\n" for name in NUMBERS]
    parts += [_array(name) for name in ARRAYS]
    parts.append("DECAY = np.exp(-np.arange(FADED)[:, None] / np.array([FAST, SLOW])).astype(np.float32)\n")
    parts.append(_dtype())
    parts += [f"\n\n{_source(function)}" for function in FUNCTIONS]
    return {FILE: "".join([*parts, CLASS])}


def _array(name: str) -> str:
    array = getattr(memory, name)
    return f"{name} = np.array({array.tolist()!r}, np.{array.dtype.name.replace('bool', 'bool_')})\n"


def _dtype() -> str:
    """The record of the memory, as source."""
    fields = []
    for name in memory.MEMORY.names or ():
        own = memory.MEMORY[name]
        fields.append(f"    ({name!r}, np.{np.dtype(own.base).name}, {own.shape!r}),\n")
    return f"MEMORY = np.dtype((np.record, [\n{''.join(fields)}]))\n"


def _source(function: Callable[..., Any]) -> str:
    """The source of a kernel, without the decorator."""
    plain = getattr(function, "py_func", None) or inspect.unwrap(function)
    return inspect.getsource(plain).removeprefix("@kernel\n")
