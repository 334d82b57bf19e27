"""Parity with the original: replays recorded games through the game's own compiled rules and compares every field.

The recorded actions and random outcomes are the input; every output must be equal at every step. Red's decisions are
predicted before: B_line's exactly, Meander's action exactly and its target as one of several candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.kernels import kernel
from remuda.games.cage2.attacker import decode_red, encode_red, red_may
from remuda.games.cage2.network import BRUTE_FORCE, EXPLOITS, NAMES, NO_EXPLOIT, OPTIONS, SUBNETS, action_name
from remuda.games.cage2.observation import BITS, write_observation
from remuda.games.cage2.red import (
    AGENTS,
    B_LINE,
    ENTRIES,
    FIRST_ENTRY,
    RED_STATE,
    next_action,
    record_choice,
    reset_red,
)
from remuda.games.cage2.simulator import Draws, TurnActions, transition
from remuda.games.cage2.state import (
    ESCALATE,
    EXPLOIT,
    IMPACT,
    NONE,
    RED_VERBS,
    SCAN,
    STATE,
    SUCCEEDED,
    SWEEP,
    UNKNOWN,
    privilege,
    start,
)
from remuda.games.cage2.traces import INPUTS, OUTPUTS, START, Trace, read_trace
from remuda.games.trace_files import find_traces

CHALLENGE, CHALLENGE2 = 0, 1
FORBIDDEN = -1  # in place of the predicted action, where a red player may not do what was recorded
PREDICTED = ("red_action", "red_target", "exploit", "detect", "pe_n")  # recorded inputs that our rules predict
PREDICTED_SETS = ("red_target", "exploit", "detect")  # of these, a set of possible values
FIELDS = (*START, *OUTPUTS, *PREDICTED)
STEPS_SHOWN = 4  # steps shown before the first mismatch
SHOWN_BEFORE = (
    "priv", "n_root", "n_user_rm", "n_user_norm", "malware", "red_ports", "red_scanned", "ot_running", "ot_killable",
    "known_ips", "known_hosts", "known_subnets", "bline_idx", "m_exploited", "m_escalated", "decoys",
)  # fmt: skip


@dataclass
class Report:
    """What was checked, and how often each field differed."""

    files: int = 0
    episodes: int = 0
    steps: int = 0
    mismatches: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FIELDS, 0))
    first: str | None = None  # a text about the first mismatch

    @property
    def total(self) -> int:
        """The number of mismatches over all fields."""
        return sum(self.mismatches.values())

    @property
    def good(self) -> bool:
        """Whether there is no mismatch."""
        return self.total == 0

    def __str__(self) -> str:
        rows = [f"  {name:18s} {count:>9,}" for name, count in self.mismatches.items()]
        verdict = "no mismatch in any field" if self.good else f"{self.total:,} mismatches"
        head = f"{self.files} files, {self.episodes:,} episodes, {self.steps:,} steps checked: {verdict}"
        return "\n".join([head, f"  {'field':18s} mismatches", *rows, *([self.first] if self.first else [])])


def verify(folder: Path | str) -> Report:
    """Replay every trace below a folder and compare."""
    report = Report()
    traces = (read_trace(path) for path in find_traces(Path(folder)))
    for trace in traces:
        _check(trace, report)
    return report


def _check(trace: Trace, report: Report) -> None:
    ours = replay(trace)
    differing = {name: _differs(name, trace, ours) for name in FIELDS}
    report.files += 1
    report.episodes += trace.episodes
    report.steps += trace.episodes * trace.steps
    for name, where in differing.items():
        report.mismatches[name] += int(where.sum())
    if report.first is None and any(where.any() for where in differing.values()):
        report.first = _explain(trace, ours, differing)


def _differs(name: str, trace: Trace, ours: dict[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Where a field differs: (episodes, steps), or (episodes, 1) for an observation after reset."""
    theirs, mine = trace.arrays[name], ours[name]
    differs: NDArray[np.bool_]
    if name in PREDICTED_SETS:  # ours is a set of bits; a recorded NONE stands for the empty set
        allowed = (mine >> np.minimum(theirs, 62).astype(np.int64)) & 1 == 1
        differs = (theirs != NONE) & ~allowed | (theirs == NONE) & (mine != 0)
        return differs
    shape = (trace.episodes, 1) if name in START else (trace.episodes, trace.steps)
    differs = (theirs != mine).reshape(*shape, -1).any(axis=-1)
    return differs


def replay(trace: Trace) -> dict[str, NDArray[Any]]:
    """Every field as our rules compute it, in the shape of the trace; those in PREDICTED_SETS as sets of bits."""
    shape = (trace.episodes, trace.steps)
    ours = {name: np.zeros((trace.episodes, BITS), np.uint8) for name in START}
    ours |= {name: np.zeros((*shape, *rest), np.int64) for name, rest in OUTPUTS.items()}
    ours["reward"] = np.zeros(shape, trace.arrays["reward"].dtype)
    ours |= {name: np.zeros(shape, np.int64) for name in PREDICTED}
    for t, (state, red_state, predicted) in enumerate(replay_steps(trace), -1):
        if t < 0:
            for wrapper, name in enumerate(START):
                _observe_all(state, wrapper, ours[name])
            continue
        for i, name in enumerate(PREDICTED):
            ours[name][:, t] = predicted[:, i]
        for name, field_name in FROM_STATE.items():
            ours[name][:, t] = state[field_name]
        for name, field_name in FROM_RED_STATE.items():
            ours[name][:, t] = red_state[field_name]
        for name, compute in COMPUTED.items():
            ours[name][:, t] = compute(state, red_state, trace.red)
    return ours


def replay_steps(trace: Trace) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]]:
    """Replay all episodes at once: yields states, red states and predictions at the start and after each step.

    The three arrays are the same objects each time, updated in place.
    """
    state, red_state = np.zeros(trace.episodes, STATE), np.zeros(trace.episodes, RED_STATE)
    _start_all(state, red_state, _entries(trace))
    inputs = np.stack([trace.arrays[name].astype(np.int64) for name in INPUTS], axis=-1)
    predicted = np.zeros((trace.episodes, len(PREDICTED)), np.int64)
    yield state, red_state, predicted
    for t in range(trace.steps):
        predicted[:] = 0
        _replay_step(state, red_state, inputs[:, t], trace.red, trace.leaderboard, predicted)
        yield state, red_state, predicted


def _entries(trace: Trace) -> NDArray[np.int64]:
    """The user host through which B_line entered in each episode: the target of its first scan."""
    scans = trace.arrays["red_action"] == SCAN
    first = trace.arrays["red_target"][np.arange(trace.episodes), scans.argmax(axis=1)].astype(np.int64)
    entries: NDArray[np.int64] = np.clip(first, FIRST_ENTRY, FIRST_ENTRY + ENTRIES - 1)
    return entries


def _observed(state: NDArray[Any], wrapper: int) -> NDArray[np.uint8]:
    out = np.zeros((len(state), BITS), np.uint8)
    _observe_all(state, wrapper, out)
    return out


FROM_STATE = {  # recorded fields that are fields of our state
    "blue_success": "blue_success", "red_success": "red_success",
    "n_root": "root", "n_user_rm": "removable", "n_user_norm": "pinned", "decoys": "decoys", "malware": "malware",
    "ot_running": "service_up", "ot_killable": "service_stoppable", "ot_known": "service_known",
    "red_ports": "known_ports", "red_scanned": "scanned",
    "known_ips": "addresses", "known_hosts": "hostnames", "known_subnets": "subnets",
}  # fmt: skip
FROM_RED_STATE = {  # recorded fields that are fields of our red state
    "m_scanned_subnets": "swept", "m_scanned_ips": "probed", "m_exploited": "exploited", "m_escalated": "escalated",
}  # fmt: skip
COMPUTED: dict[str, Callable[[Any, Any, int], Any]] = {  # the others, from state, red state and red agent
    "obs": lambda s, m, red: _observed(s, CHALLENGE),
    "obs2": lambda s, m, red: _observed(s, CHALLENGE2),
    "reward": lambda s, m, red: 0.0 - s["cost"] / 10.0,
    "done": lambda s, m, red: 0,  # the original never ends an episode; the number of steps only truncates it
    "green_success": lambda s, m, red: np.where(s["green_target"] == NONE, UNKNOWN, SUCCEEDED),
    "impact_ok": lambda s, m, red: (s["red"] == IMPACT) & (s["red_success"] == SUCCEEDED),
    "priv": lambda s, m, red: privilege(s),
    "bline_idx": lambda s, m, red: m["counter"] if red == B_LINE else NONE,
}


@kernel
def _start_all(state: Any, red_state: Any, entries: Any) -> None:
    for w in range(len(state)):
        start(state[w])
        reset_red(red_state[w], entries[w])


@kernel
def _observe_all(state: Any, wrapper: int, out: Any) -> None:
    for w in range(len(state)):
        write_observation(state[w], wrapper, out[w])


@kernel
def _replay_step(state: Any, red_state: Any, inputs: Any, agent: int, leaderboard: bool, predicted: Any) -> None:
    """Play one recorded step of every episode; `predicted` receives what red and the random draws could have been."""
    for w in range(len(state)):
        s, m = state[w], red_state[w]
        blue, red, target, exploit, detect, position, sessions, green = inputs[w, :8]
        action, candidates = next_action(agent, m, s)
        choice = encode_red(red, target)  # red is driven as a player of the group `red` would be
        action = action if red_may(s, choice) else FORBIDDEN
        red, target = decode_red(choice)
        record_choice(agent, m, red, target)
        options = 0
        if red == EXPLOIT and s.scanned[target]:
            options = max(OPTIONS[s.known_ports[target]], 1 << NO_EXPLOIT)
            exploit = NO_EXPLOIT if exploit == NONE else exploit  # a mismatch, but the replay must not fail here
        had_root = red == ESCALATE and s.root[target] != 0
        session = min((position + 0.5) / sessions, 0.99) if sessions else 0.0
        transition(s, TurnActions(blue, green, red, target), Draws(exploit, detect == 1, session), leaderboard)
        shell = red == EXPLOIT and s.red_success == SUCCEEDED and exploit != BRUTE_FORCE
        predicted[w, 0] = action
        predicted[w, 1] = candidates
        predicted[w, 2] = options
        predicted[w, 3] = 0b11 if shell else 0
        if red == ESCALATE and s.red_success == SUCCEEDED and not had_root:
            predicted[w, 4] = 1 + s.removable[target] + s.pinned[target]


def _explain(trace: Trace, ours: dict[str, NDArray[Any]], differing: dict[str, NDArray[np.bool_]]) -> str:
    """A text with everything that helps to understand the first mismatch of a file."""
    for name in START:
        if differing[name].any():
            return f"first mismatch: {trace.path}: {name}, the observation after reset, is not all zero"
    steps = np.logical_or.reduce([where for name, where in differing.items() if name not in START])
    episode, step = np.argwhere(steps)[0].tolist()
    seed = "" if trace.seeds is None else f" (seed {trace.seeds[episode]})"
    rules = "leaderboard" if trace.leaderboard else "head"
    lines = [
        f"first mismatch: {trace.path}, episode {episode}{seed}, step {step + 1}",
        f"  red {AGENTS[trace.red]}, blue {trace.blue}, green {trace.green}, rules {rules}",
        *(f"  step {t + 1}: {_step_text(trace, episode, t)}" for t in range(max(0, step - STEPS_SHOWN), step + 1)),
    ]
    for name in [name for name in FIELDS if name not in START and differing[name][episode, step]]:
        lines += _difference(name, trace.arrays[name][episode, step], ours[name][episode, step])
    if step:
        lines.append("  recorded before the step, hosts in order " + " ".join(NAMES))
        lines += [f"    {name:12s} {trace.arrays[name][episode, step - 1].tolist()}" for name in SHOWN_BEFORE]
    return "\n".join(lines)


def _step_text(trace: Trace, episode: int, step: int) -> str:
    """The actions and random outcomes of a recorded step, as text."""
    get = {name: int(trace.arrays[name][episode, step]) for name in INPUTS}
    red, target = get["red_action"], get["red_target"]
    names: tuple[str, ...] = SUBNETS if red == SWEEP else NAMES
    where = f" {names[target]}" if target != NONE else ""
    how = f" by {EXPLOITS[get['exploit'] - 1].name}" if 0 < get["exploit"] < NONE else ""
    noticed = {0: ", unnoticed", 1: ", noticed"}.get(get["detect"], "")
    green = f"; green scans {NAMES[get['green_target']]}" if get["green_target"] != NONE else ""
    reward = trace.arrays["reward"][episode, step]
    return f"blue {action_name(get['blue_action'])}{green}; red {RED_VERBS[red]}{where}{how}{noticed}; reward {reward}"


def _difference(name: str, recorded: Any, ours: Any) -> list[str]:
    if name in PREDICTED_SETS:
        allowed = [bit for bit in range(16) if int(ours) >> bit & 1]
        return [f"    {name}: recorded {recorded}, possible {allowed or [NONE]}"]
    if np.ndim(recorded) == 0:
        return [f"    {name}: recorded {recorded}, ours {ours}"]
    lines = []
    for place in np.argwhere(recorded != ours).tolist():
        host = NAMES[place[0] // 4] if name.startswith("obs") else NAMES[place[0]]
        lines.append(f"    {name}{place} ({host}): recorded {recorded[tuple(place)]}, ours {ours[tuple(place)]}")
    return lines
