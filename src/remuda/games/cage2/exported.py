"""A defender's memory, belief and actions as one plain Python file, for an exported agent: numpy, and no remuda.

The functions are copied from the source, with everything that they use.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import numpy as np

from remuda.games.cage2 import belief, memory, useful
from remuda.games.cage2.options import Cage2Options, RuleSet

FILE = "defender.py"
MEMORY_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    memory.forget,
    memory.remember,
    memory.write_features,
    memory.full_action,
    memory.write_mask,
)
BELIEF_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    belief.suppose,
    belief.conclude,
    belief.write_belief,
    useful.mask_useless,
)
NAMES_OF_HEAD = {"np", "Any", "NamedTuple", "NDArray"}
HEAD = '''"""A trained defender of CAGE Challenge 2 with what it remembers, in plain numpy and torch.

    defender = Defender("weights.safetensors")
    action = defender.get_action(bits)      # the 52 bits of BlueTableWrapper in, one of the 145 actions out
    defender.end_episode()

It has the methods that the challenge's evaluation calls: it plays in CybORG as it is. It needs `network.py` beside it.
"""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

OBSERVATION, HAS_COMPACT_ACTIONS, MASKS_USELESS = {observation!r}, {compact}, {useful}
WRAPPER, LEADERBOARD_RULES = {wrapper}, {leaderboard}  # what a belief assumes about the game
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
        self.belief = Belief.of(1) if OBSERVATION == "belief" else None
        self.state = None  # of a network with a memory
        self.end_episode()

    def end_episode(self) -> None:
        """Forget everything: the next observation is the first of an episode."""
        forget(self.memory)
        if self.belief is not None:
            self.belief.counts[0] = suppose(self.belief.hypotheses[0])
        if self.network.state_size:
            self.state = self.code.torch.zeros(1, self.network.state_size)
        self.action = None

    def get_action(self, observation: Any, action_space: Any = None) -> int:
        """The action, one of the 145, after the 52 bits that were seen now."""
        bits = np.asarray(observation).astype(np.int64)
        if self.action is not None:
            remember(self.memory, bits, self.action)
            if self.belief is not None:
                with np.errstate(over="ignore"):  # in hashes
                    conclude(self.belief, 0, bits, self.action, WRAPPER, LEADERBOARD_RULES)
        self.action = int(self.choose(bits))
        return self.action

    def inputs(self, bits: Any) -> Any:
        """What the network sees."""
        if self.belief is not None:
            out = np.zeros(len(self.belief.written), np.float32)
            write_belief(self.belief.hypotheses[0], self.belief.counts[0], self.memory.turn, self.belief.written, out)
            return out
        if OBSERVATION == "bits":
            return bits.astype(np.float32)
        out = np.zeros(FEATURES, np.float32)
        write_features(self.memory, out)
        return out

    def choose(self, bits: Any) -> int:
        """The best action by the network."""
        torch = self.code.torch
        mask = np.ones(N_COMPACT, np.bool_)
        write_mask(self.memory, mask)
        if MASKS_USELESS:
            mask_useless(self.belief.hypotheses[0], self.belief.counts[0], LEADERBOARD_RULES, mask)
        with torch.no_grad():
            frames = torch.from_numpy(self.inputs(bits))[None, None]
            if self.state is None:
                outputs = self.network(frames)
            else:
                outputs, self.state = self.network(frames, self.state)
        allowed = torch.from_numpy(mask)[None] if HAS_COMPACT_ACTIONS else None
        best = int(self.code.choose(outputs, allowed)[0])
        return full_action(self.memory, best) if HAS_COMPACT_ACTIONS else best
'''


def exported_files(options: Cage2Options) -> dict[str, str]:
    """What an exported defender needs besides its network: nothing if it sees plain bits and has the plain actions."""
    if not options.needs_memory or options.observation in ("hypotheses", "truth") or options.workflow is not None:
        return {}
    believes = options.believes
    rules: list[RuleSet] | RuleSet = options.rules
    head = HEAD.format(
        observation=options.observation,
        compact=options.actions != "full",
        useful=options.actions == "useful",
        wrapper=int(options.wrapper == "challenge2"),
        leaderboard=rules == "leaderboard",
    )
    constants: dict[str, str] = {
        "MEMORY": f"MEMORY = {_dtype(memory.MEMORY)}\n",
        "FEATURES": f"FEATURES = {memory.FEATURES}\n",
    }
    sources: dict[str, str] = {}
    for function in (*MEMORY_FUNCTIONS, *(BELIEF_FUNCTIONS if believes else ())):
        _collect(function.__name__, function, constants, sources)
    if believes:
        _collect("Belief", belief.Belief, constants, sources)
    return {FILE: "".join([head, *constants.values(), *(f"\n\n{source}" for source in sources.values()), CLASS])}


def _collect(name: str, value: Any, constants: dict[str, str], sources: dict[str, str]) -> None:
    """Add a global of our modules, and everything that it uses, to the constants or the sources of a file."""
    if name in constants or name in sources or name in NAMES_OF_HEAD:
        return
    if isinstance(value, np.ndarray):
        kind = value.dtype.name.replace("bool", "bool_")
        constants[name] = f"{name} = np.array({value.tolist()!r}, np.{kind})\n"
    elif isinstance(value, np.dtype):
        constants[name] = f"{name} = {_dtype(value)}\n"
    elif not callable(value):
        constants[name] = f"{name} = {value!r}\n"
    else:
        plain = getattr(value, "py_func", None) or inspect.unwrap(value)
        sources[name] = inspect.getsource(plain).removeprefix("@kernel\n")
        for function in [plain] if not isinstance(value, type) else _methods(value):
            for used in _globals_used(function.__code__):
                if used in function.__globals__:
                    _collect(used, function.__globals__[used], constants, sources)


def _methods(value: type) -> Iterator[Any]:
    """Functions that a class defines itself."""
    for own in vars(value).values():
        function = getattr(own, "__func__", own)
        if inspect.isfunction(function) and function.__module__ == value.__module__:
            yield function


def _globals_used(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_used(constant)


def _dtype(dtype: Any) -> str:
    """A record, as source."""
    fields = []
    for name in dtype.names or ():
        own = dtype[name]
        kind = _dtype(own) if own.names else f"np.{np.dtype(own.base).name}"
        fields.append(f"    ({name!r}, {kind}, {own.shape!r}),\n")
    return f"np.dtype((np.record, [\n{''.join(fields)}]))"
