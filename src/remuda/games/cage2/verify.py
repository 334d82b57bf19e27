"""Parity: replay recorded games through the game's own compiled rules and compare everything.

Fed the recorded actions and outcomes of chance, every output must be equal at every step. Red's decisions
are predicted first: B_line's exactly, Meander's action exactly and its target as one of its candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.kernels import kernel
from remuda.games.cage2.network import BRUTE_FORCE, EXPLOITS, NAMES, NO_EXPLOIT, OPTIONS, SUBNETS, action_name
from remuda.games.cage2.observation import BITS, write_observation
from remuda.games.cage2.red import AGENTS, B_LINE, ENTRIES, FIRST_ENTRY, MIND, clear_mind, commit, consider
from remuda.games.cage2.simulator import (
    ESCALATE,
    EXPLOIT,
    IMPACT,
    NOBODY,
    RED_VERBS,
    SCAN,
    STATE,
    SUCCEEDED,
    SWEEP,
    UNKNOWN,
    Draws,
    Orders,
    start,
    transition,
)
from remuda.games.cage2.traces import INPUTS, OUTPUTS, START, Trace, find_traces, read_trace

CHALLENGE, CHALLENGE2 = 0, 1
INFERRED = ("red_action", "red_target", "exploit", "detect", "pe_n")  # recorded inputs that our rules foresee
ALLOWED = ("red_target", "exploit", "detect")  # they foresee a set of values
FIELDS = (*START, *OUTPUTS, *INFERRED)
BEFORE = 4  # steps shown before the first mismatch
CONTEXT = (
    "priv", "n_root", "n_user_rm", "n_user_norm", "malware", "red_ports", "red_scanned", "ot_running", "ot_killable",
    "known_ips", "known_hosts", "known_subnets", "bline_idx", "m_exploited", "m_escalated", "decoys",
)  # fmt: skip


@dataclass
class Report:
    """What was checked and what differed."""

    files: int = 0
    episodes: int = 0
    steps: int = 0
    mismatches: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FIELDS, 0))
    first: str | None = None  # everything about the first mismatch

    @property
    def total(self) -> int:
        """Steps (or resets) and fields that differ, all together."""
        return sum(self.mismatches.values())

    @property
    def good(self) -> bool:
        """Whether nothing differed."""
        return self.total == 0

    def __str__(self) -> str:
        rows = [f"  {name:18s} {count:>9,}" for name, count in self.mismatches.items()]
        verdict = "no mismatch in any field" if self.good else f"{self.total:,} mismatches"
        head = f"{self.files} files, {self.episodes:,} episodes, {self.steps:,} steps checked: {verdict}"
        return "\n".join([head, f"  {'field':18s} mismatches", *rows, *([self.first] if self.first else [])])


def verify(folder: Path | str) -> Report:
    """Replay every trace below a folder."""
    report = Report()
    traces = (read_trace(path) for path in find_traces(Path(folder)))
    for trace in traces:
        _check(trace, report)
    return report


def _check(trace: Trace, report: Report) -> None:
    ours = replay(trace)
    wrong = {name: _differs(name, trace, ours) for name in FIELDS}
    report.files += 1
    report.episodes += trace.episodes
    report.steps += trace.episodes * trace.steps
    for name, where in wrong.items():
        report.mismatches[name] += int(where.sum())
    if report.first is None and any(where.any() for where in wrong.values()):
        report.first = _explain(trace, ours, wrong)


def _differs(name: str, trace: Trace, ours: dict[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Where a field is wrong: (episodes, steps), or (episodes, 1) for what a reset shows."""
    theirs, mine = trace.arrays[name], ours[name]
    differs: NDArray[np.bool_]
    if name in ALLOWED:  # ours is a set of bits, and NOBODY stands for the empty one
        allowed = (mine >> np.minimum(theirs, 62).astype(np.int64)) & 1 == 1
        differs = (theirs != NOBODY) & ~allowed | (theirs == NOBODY) & (mine != 0)
        return differs
    shape = (trace.episodes, 1) if name in START else (trace.episodes, trace.steps)
    differs = (theirs != mine).reshape(*shape, -1).any(axis=-1)
    return differs


def replay(trace: Trace) -> dict[str, NDArray[Any]]:
    """Every field as our rules have it, in the shape of the trace; those in ALLOWED as sets of bits."""
    shape = (trace.episodes, trace.steps)
    ours = {name: np.zeros((trace.episodes, BITS), np.uint8) for name in START}
    ours |= {name: np.zeros((*shape, *rest), np.int64) for name, rest in OUTPUTS.items()}
    ours["reward"] = np.zeros(shape, trace.arrays["reward"].dtype)
    ours |= {name: np.zeros(shape, np.int64) for name in INFERRED}
    for t, (state, mind, inferred) in enumerate(walk(trace), -1):
        if t < 0:
            for wrapper, name in enumerate(START):
                _observe_all(state, wrapper, ours[name])
            continue
        for i, name in enumerate(INFERRED):
            ours[name][:, t] = inferred[:, i]
        for name, read in READ.items():
            ours[name][:, t] = read(state, mind, trace.red)
    return ours


def walk(trace: Trace) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]]:
    """All episodes at once, step by step, first where they start: states, red's minds, and what is inferred."""
    state, mind = np.zeros(trace.episodes, STATE), np.zeros(trace.episodes, MIND)
    _start_all(state, mind, _entries(trace))
    inputs = np.stack([trace.arrays[name].astype(np.int64) for name in INPUTS], axis=-1)
    inferred = np.zeros((trace.episodes, len(INFERRED)), np.int64)
    yield state, mind, inferred
    for t in range(trace.steps):
        inferred[:] = 0
        _replay_step(state, mind, inputs[:, t], trace.red, trace.leaderboard, inferred)
        yield state, mind, inferred


def _entries(trace: Trace) -> NDArray[np.int64]:
    """The user host B_line drew in each episode: the target of its first scan."""
    scans = trace.arrays["red_action"] == SCAN
    first = trace.arrays["red_target"][np.arange(trace.episodes), scans.argmax(axis=1)].astype(np.int64)
    entries: NDArray[np.int64] = np.clip(first, FIRST_ENTRY, FIRST_ENTRY + ENTRIES - 1)
    return entries


def _observed(state: NDArray[Any], wrapper: int) -> NDArray[np.uint8]:
    out = np.zeros((len(state), BITS), np.uint8)
    _observe_all(state, wrapper, out)
    return out


def _privilege(state: NDArray[Any]) -> Any:
    user = (state["removable"] > 0) | (state["pinned"] > 0)
    return np.where(state["root"] > 0, 2, np.where(user, 1, 0))


READ: dict[str, Callable[[Any, Any, int], Any]] = {
    "obs": lambda s, m, red: _observed(s, CHALLENGE),
    "obs2": lambda s, m, red: _observed(s, CHALLENGE2),
    "reward": lambda s, m, red: 0.0 - s["cost"] / 10.0,
    "done": lambda s, m, red: 0,  # the game has no end of its own; steps only cut it off
    "blue_success": lambda s, m, red: s["blue_success"],
    "red_success": lambda s, m, red: s["red_success"],
    "green_success": lambda s, m, red: np.where(s["green_target"] == NOBODY, UNKNOWN, SUCCEEDED),
    "impact_ok": lambda s, m, red: (s["red"] == IMPACT) & (s["red_success"] == SUCCEEDED),
    "priv": lambda s, m, red: _privilege(s),
    "n_root": lambda s, m, red: s["root"],
    "n_user_rm": lambda s, m, red: s["removable"],
    "n_user_norm": lambda s, m, red: s["pinned"],
    "decoys": lambda s, m, red: s["decoys"],
    "malware": lambda s, m, red: s["malware"],
    "ot_running": lambda s, m, red: s["service_up"],
    "ot_killable": lambda s, m, red: s["service_stoppable"],
    "ot_known": lambda s, m, red: s["service_known"],
    "red_ports": lambda s, m, red: s["known_ports"],
    "red_scanned": lambda s, m, red: s["scanned"],
    "known_ips": lambda s, m, red: s["addresses"],
    "known_hosts": lambda s, m, red: s["hostnames"],
    "known_subnets": lambda s, m, red: s["subnets"],
    "bline_idx": lambda s, m, red: m["counter"] if red == B_LINE else NOBODY,
    "m_scanned_subnets": lambda s, m, red: m["swept"],
    "m_scanned_ips": lambda s, m, red: m["probed"],
    "m_exploited": lambda s, m, red: m["exploited"],
    "m_escalated": lambda s, m, red: m["escalated"],
}


@kernel
def _start_all(state: Any, mind: Any, entries: Any) -> None:
    for w in range(len(state)):
        start(state[w])
        clear_mind(mind[w], entries[w])


@kernel
def _observe_all(state: Any, wrapper: int, out: Any) -> None:
    for w in range(len(state)):
        write_observation(state[w], wrapper, out[w])


@kernel
def _replay_step(state: Any, mind: Any, inputs: Any, agent: int, leaderboard: bool, inferred: Any) -> None:
    """One recorded step of every episode; `inferred` says what red and the dice could have done."""
    for w in range(len(state)):
        s, m = state[w], mind[w]
        blue, red, target, exploit, detect, position, sessions, green = inputs[w, :8]
        action, candidates = consider(agent, m, s)
        commit(agent, m, red, target)
        options = 0
        if red == EXPLOIT and s.scanned[target]:
            options = max(OPTIONS[s.known_ports[target]], 1 << NO_EXPLOIT)
            exploit = NO_EXPLOIT if exploit == NOBODY else exploit  # a mismatch, but not one to crash on
        had_root = red == ESCALATE and s.root[target] != 0
        session = min((position + 0.5) / sessions, 0.99) if sessions else 0.0
        transition(s, Orders(blue, green, red, target), Draws(exploit, detect == 1, session), leaderboard)
        shell = red == EXPLOIT and s.red_success == SUCCEEDED and exploit != BRUTE_FORCE
        inferred[w, 0] = action
        inferred[w, 1] = candidates
        inferred[w, 2] = options
        inferred[w, 3] = 0b11 if shell else 0
        if red == ESCALATE and s.red_success == SUCCEEDED and not had_root:
            inferred[w, 4] = 1 + s.removable[target] + s.pinned[target]


def _explain(trace: Trace, ours: dict[str, NDArray[Any]], wrong: dict[str, NDArray[np.bool_]]) -> str:
    """Everything needed to understand the first mismatch of a file."""
    for name in START:
        if wrong[name].any():
            return f"first mismatch: {trace.path}: {name}, the observation after reset, is not all zero"
    steps = np.logical_or.reduce([where for name, where in wrong.items() if name not in START])
    episode, step = np.argwhere(steps)[0].tolist()
    seed = "" if trace.seeds is None else f" (seed {trace.seeds[episode]})"
    rules = "leaderboard" if trace.leaderboard else "head"
    lines = [
        f"first mismatch: {trace.path}, episode {episode}{seed}, step {step + 1}",
        f"  red {AGENTS[trace.red]}, blue {trace.blue}, green {trace.green}, rules {rules}",
        *(f"  step {t + 1}: {_deeds(trace, episode, t)}" for t in range(max(0, step - BEFORE), step + 1)),
    ]
    for name in [name for name in FIELDS if name not in START and wrong[name][episode, step]]:
        lines += _difference(name, trace.arrays[name][episode, step], ours[name][episode, step])
    if step:
        lines.append("  recorded before the step, hosts in order " + " ".join(NAMES))
        lines += [f"    {name:12s} {trace.arrays[name][episode, step - 1].tolist()}" for name in CONTEXT]
    return "\n".join(lines)


def _deeds(trace: Trace, episode: int, step: int) -> str:
    """What everybody did in a recorded step, and how the dice fell."""
    get = {name: int(trace.arrays[name][episode, step]) for name in INPUTS}
    red, target = get["red_action"], get["red_target"]
    names: tuple[str, ...] = SUBNETS if red == SWEEP else NAMES
    where = f" {names[target]}" if target != NOBODY else ""
    how = f" by {EXPLOITS[get['exploit'] - 1].name}" if 0 < get["exploit"] < NOBODY else ""
    noticed = {0: ", unnoticed", 1: ", noticed"}.get(get["detect"], "")
    green = f"; green scans {NAMES[get['green_target']]}" if get["green_target"] != NOBODY else ""
    reward = trace.arrays["reward"][episode, step]
    return f"blue {action_name(get['blue_action'])}{green}; red {RED_VERBS[red]}{where}{how}{noticed}; reward {reward}"


def _difference(name: str, recorded: Any, ours: Any) -> list[str]:
    if name in ALLOWED:
        allowed = [bit for bit in range(16) if int(ours) >> bit & 1]
        return [f"    {name}: recorded {recorded}, possible {allowed or [NOBODY]}"]
    if np.ndim(recorded) == 0:
        return [f"    {name}: recorded {recorded}, ours {ours}"]
    lines = []
    for place in np.argwhere(recorded != ours).tolist():
        host = NAMES[place[0] // 4] if name.startswith("obs") else NAMES[place[0]]
        lines.append(f"    {name}{place} ({host}): recorded {recorded[tuple(place)]}, ours {ours[tuple(place)]}")
    return lines
