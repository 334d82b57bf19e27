"""Recorded games of the original simulator (traces): read as plain data, and checked before they are used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.errors import TraceError
from remuda.games.cage2.network import EXPLOITS, N_ACTIONS, N_DECOYS, N_HOSTS, SUBNETS
from remuda.games.cage2.observation import BITS
from remuda.games.cage2.red import ASLEEP, B_LINE, MEANDER
from remuda.games.cage2.state import IMPACT, NONE, REST, SCAN, SWEEP
from remuda.games.trace_files import read_arrays

MAX_NAME_LENGTH = 100
RED_AGENTS = {
    "bline": B_LINE, "b_line": B_LINE, "B_lineAgent": B_LINE,
    "meander": MEANDER, "RedMeanderAgent": MEANDER,
    "sleep": ASLEEP, "SleepAgent": ASLEEP,
}  # fmt: skip
INPUTS = (
    "blue_action", "red_action", "red_target", "exploit", "detect", "pe_choice", "pe_n", "green_target", "green_action",
)  # fmt: skip
OUTPUTS: dict[str, tuple[int, ...]] = {  # per step
    "obs": (BITS,), "obs2": (BITS,), "reward": (), "done": (),
    "blue_success": (), "red_success": (), "green_success": (), "impact_ok": (),
    "priv": (N_HOSTS,), "n_root": (N_HOSTS,), "n_user_rm": (N_HOSTS,), "n_user_norm": (N_HOSTS,),
    "decoys": (N_HOSTS, N_DECOYS), "malware": (N_HOSTS,), "ot_running": (), "ot_killable": (), "ot_known": (),
    "red_ports": (N_HOSTS,), "red_scanned": (N_HOSTS,), "known_ips": (), "known_hosts": (), "known_subnets": (),
    "bline_idx": (), "m_scanned_subnets": (), "m_scanned_ips": (), "m_exploited": (), "m_escalated": (),
}  # fmt: skip
START = ("obs0", "obs0_2")
NAME_FIELDS = ("red", "blue", "green", "variant")


@dataclass(frozen=True)
class Trace:
    """One file: episodes of one red agent against one blue one."""

    path: Path
    red: int  # a number in red.AGENTS
    blue: str
    green: str
    leaderboard: bool
    seeds: NDArray[Any] | None  # (episodes,)
    arrays: dict[str, NDArray[Any]]  # (episodes, steps, …)

    @property
    def episodes(self) -> int:
        """How many episodes it holds."""
        return int(self.arrays["blue_action"].shape[0])

    @property
    def steps(self) -> int:
        """How many steps each episode has."""
        return int(self.arrays["blue_action"].shape[1])


def read_trace(path: Path) -> Trace:
    """A trace whose arrays have the right shapes and whose inputs are in range; otherwise raises TraceError."""
    arrays = read_arrays(path, {*NAME_FIELDS, "seeds", *INPUTS, *OUTPUTS, *START})
    names = {name: _name(path, name, arrays[name]) for name in NAME_FIELDS if name in arrays}
    for name in ("red", *INPUTS, *OUTPUTS, *START):
        if name not in arrays:
            raise TraceError(f"trace {path} has no array {name!r}")
    if names["red"] not in RED_AGENTS:
        raise TraceError(f"trace {path} has the red agent {names['red']!r}: known are {', '.join(RED_AGENTS)}")
    _check_shapes(path, arrays)
    _check_inputs(path, arrays)
    variant = names.get("variant", path.parent.name)
    return Trace(
        path=path,
        red=RED_AGENTS[names["red"]],
        blue=names.get("blue", "?"),
        green=names.get("green", "?"),
        leaderboard="leaderboard" in variant,
        seeds=arrays.get("seeds"),
        arrays=arrays,
    )


def _name(path: Path, name: str, array: NDArray[Any]) -> str:
    text = str(array) if array.shape == () and array.dtype.kind == "U" else ""
    if not text.isprintable() or not 0 < len(text) <= MAX_NAME_LENGTH:
        raise TraceError(f"trace {path}: {name} is not a name")
    return text


def _check_shapes(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    shape = arrays["blue_action"].shape
    if len(shape) != 2 or 0 in shape:
        raise TraceError(f"trace {path}: blue_action is {shape}, not (episodes, steps)")
    wanted: dict[str, tuple[int, ...]] = dict.fromkeys(INPUTS, shape)
    wanted |= {name: (*shape, *rest) for name, rest in OUTPUTS.items()}
    wanted |= dict.fromkeys(START, (shape[0], BITS))
    for name, expected in wanted.items():
        array = arrays[name]
        if array.shape != expected:
            raise TraceError(f"trace {path}: {name} is {array.shape}, not {expected}")
        if array.dtype.kind not in ("f" if name == "reward" else "uib"):
            raise TraceError(
                f"trace {path}: {name} holds {array.dtype}, not {'floats' if name == 'reward' else 'whole numbers'}"
            )
    if "seeds" in arrays and (arrays["seeds"].shape != shape[:1] or arrays["seeds"].dtype.kind not in "ui"):
        raise TraceError(f"trace {path}: seeds is {arrays['seeds'].shape}, not {shape[:1]} whole numbers")


def _check_inputs(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    """Refuse inputs out of range: compiled code uses them as indices without a check."""
    for name, good in _ranges(arrays):
        bad = np.argwhere(~good)
        if len(bad):
            episode, step = bad[0].tolist()
            value = arrays[name][episode, step]
            raise TraceError(f"trace {path}: {name} is {value} in episode {episode}, step {step + 1}: out of range")


def _ranges(arrays: dict[str, NDArray[Any]]) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """For each condition, the name of the input and where it holds, (episodes, steps)."""

    def within(name: str, limit: int, may_be_none: bool = True) -> NDArray[np.bool_]:
        values = arrays[name]
        good: NDArray[np.bool_] = (values >= 0) & (values < limit)
        return good | (values == NONE) if may_be_none else good

    action, target = arrays["red_action"], arrays["red_target"]
    yield "blue_action", within("blue_action", N_ACTIONS, may_be_none=False)
    yield "red_action", within("red_action", IMPACT + 1, may_be_none=False)
    yield "red_target", within("red_target", N_HOSTS)
    yield "red_target", (action != SWEEP) | (target < len(SUBNETS))
    yield "red_target", (action < SCAN) | (target != NONE)
    yield "red_target", (action != REST) | (target == NONE)
    yield "exploit", within("exploit", 1 + len(EXPLOITS))
    yield "detect", within("detect", 2)
    yield "pe_choice", within("pe_choice", NONE)
    yield "pe_n", within("pe_n", NONE + 1, may_be_none=False)
    yield "green_action", within("green_action", 2, may_be_none=False)
    yield "green_target", within("green_target", N_HOSTS)
    yield "green_target", (arrays["green_action"] == 0) == (arrays["green_target"] == NONE)
