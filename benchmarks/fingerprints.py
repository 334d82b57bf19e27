"""Fingerprints of recorded plans: they show whether a change leaves all results as they were.

    python -m benchmarks.fingerprints record FILE [WORD …]     # train every plan, write hashes and scores
    python -m benchmarks.fingerprints compare FILE [WORD …]    # train them again; exit code 1 if anything differs

With words, only plans that have one of them in their names; what is recorded of others stays.

A plan's fingerprint is its `weights_sha256`, its evaluation scores and a hash of `metrics.csv` without the times. Both
commands also check that plans which differ only in their engine, or in being resumed, have one fingerprint.

Equal bits are promised on one type of machine (`machine_type`). With a file from another type `compare` only checks
that the engines agree here, and exits with 2. To judge a change on such a machine, record the commit before it there:

    git worktree add ../before HEAD~1 && cd ../before && python -m benchmarks.fingerprints record /tmp/before.json
    python -m benchmarks.fingerprints compare /tmp/before.json      # in the tree with the change
"""

from __future__ import annotations

import csv
import hashlib
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch

import remuda

HUNT: dict[str, Any] = {
    "game": "treasurehunt", "agents": 2, "height": 7, "width": 7, "turns": 12, "spawn": 0.1, "layer": 16,
    "quantiles": 4, "acting_quantiles": 4, "frames": 2, "batch_size": 8, "replay_size": 256, "worlds": 3,
}  # fmt: skip
HUNT_PPO: dict[str, Any] = {
    "game": "treasurehunt", "agents": 3, "height": 7, "width": 7, "turns": 12, "spawn": 0.1, "learner": "ppo",
    "layers": [16, 8], "frames": 3, "passes": 2, "minibatches": 2, "worlds": 4,
}  # fmt: skip
CAGE: dict[str, Any] = {
    "game": "cage2", "steps": 15, "red": "mixed", "green": True, "learner": "ppo", "layers": [16, 16], "frames": 4,
    "passes": 2, "minibatches": 2, "worlds": 5,
}  # fmt: skip
CAGE_IQN: dict[str, Any] = {
    "game": "cage2", "steps": 10, "red": "meander", "learner": "iqn", "layer": 16, "quantiles": 4,
    "acting_quantiles": 4, "frames": 2, "batch_size": 8, "replay_size": 200, "worlds": 3,
}  # fmt: skip
IQN: dict[str, Any] = {
    "layer": 16, "quantiles": 4, "acting_quantiles": 4, "frames": 2, "batch_size": 8, "replay_size": 256, "worlds": 3,
}  # fmt: skip
PPO: dict[str, Any] = {"learner": "ppo", "layers": [16], "frames": 2, "passes": 2, "minibatches": 2, "worlds": 3}
ORDER = "defender,enterprise,op_server,op_host,user"

PLANS: dict[str, dict[str, Any]] = {
    "hunt iqn sequential": {**HUNT, "engine": "sequential"},
    "hunt iqn vectorized": {**HUNT, "engine": "vectorized", "n_workers": 2},
    "hunt iqn vectorized lag": {**HUNT, "engine": "vectorized", "n_workers": 2, "lag": 1},
    "hunt iqn threads": {**HUNT, "engine": "threads", "n_workers": 2},
    "hunt iqn sync": {**HUNT, "engine": "sync", "n_workers": 2},
    "hunt iqn executor": {**HUNT, "engine": "executor", "n_workers": 2},
    "hunt iqn ray": {**HUNT, "engine": "ray", "n_workers": 2},
    "hunt iqn executor lag": {**HUNT, "engine": "executor", "n_workers": 2, "lag": 1},
    "hunt iqn in turn": {**HUNT, "parallel_actions": False},
    "hunt iqn in turn, lag, sync": {**HUNT, "parallel_actions": False, "lag": 1, "engine": "sync", "n_workers": 2},
    "hunt iqn schedules": {**HUNT, "lr": [1e-3, "1e-3:1e-5"], "gamma": [0.9, 0.99], "epsilon": [0.5, "1:0:0.5"]},
    "hunt iqn n-step, no noise": {**HUNT, "sigma": 0.0, "n_step": 3, "updates_per_episode": 2.5},
    "hunt iqn bf16": {**HUNT, "precision": "bf16"},
    "hunt iqn default network": {
        "game": "treasurehunt", "agents": 3, "worlds": 5, "total_episodes": 15, "evaluate_episodes": 5
    },
    "hunt ppo sequential": {**HUNT_PPO, "engine": "sequential"},
    "hunt ppo vectorized lag": {**HUNT_PPO, "engine": "vectorized", "n_workers": 2, "lag": 1},
    "hunt ppo executor": {**HUNT_PPO, "engine": "executor", "n_workers": 2},
    "hunt ppo normalised": {**HUNT_PPO, "normalise_observations": True, "engine": "sync", "n_workers": 2},
    "hunt mixed herd": {**HUNT, "agents": 5, "learners": {"0-1": "iqn", "2": "random", "3-4": "ppo"}, "layers": [16]},
    "hunt worlds that differ": {**HUNT, "spawn": [0.05, 0.1, 0.3], "gem": [10.0, 20.0], "engine": "executor"},
    "cage2 ppo sequential": {**CAGE, "engine": "sequential"},
    "cage2 ppo vectorized": {**CAGE, "engine": "vectorized", "n_workers": 2},
    "cage2 ppo threads": {**CAGE, "engine": "threads", "n_workers": 2},
    "cage2 ppo sync": {**CAGE, "engine": "sync", "n_workers": 2},
    "cage2 ppo executor lag": {**CAGE, "engine": "executor", "n_workers": 2, "lag": 1},
    "cage2 ppo ray": {**CAGE, "engine": "ray", "n_workers": 2},
    "cage2 iqn vectorized": {**CAGE_IQN, "engine": "vectorized", "n_workers": 2},
    "cage2 iqn executor": {**CAGE_IQN, "engine": "executor", "n_workers": 2},
    "cage2 preset": {"preset": "workflow_rl", "total_episodes": 200, "red": "b_line"},
    "cage2 workflow": {**CAGE, "workflow": ORDER, "red": "b_line"},
    "cage2 workflows, executor": {**CAGE, "workflow": "distinct", "worlds": 70, "engine": "executor", "n_workers": 2},
    "cage2 leaderboard rules": {**CAGE, "rules": "leaderboard", "wrapper": "challenge2", "steps": 50},
    "masks iqn": {**IQN, "game": "remuda.testing:MASKED"},
    "masks ppo executor": {**PPO, "game": "remuda.testing:MASKED", "engine": "executor", "n_workers": 2},
    "deaths iqn sync": {**IQN, "game": "remuda.testing:RESPAWN", "engine": "sync", "n_workers": 2},
    "deaths ppo lag": {**PPO, "game": "remuda.testing:RESPAWN", "lag": 1},
    "unequal groups iqn": {**IQN, "game": "remuda.testing:UNEQUAL", "parallel_actions": False},
    "unequal groups ppo threads": {**PPO, "game": "remuda.testing:UNEQUAL", "engine": "threads", "n_workers": 2},
    "gifts iqn executor": {**IQN, "game": "remuda.testing:GIFTS", "engine": "executor", "n_workers": 2},
    "pettingzoo tag iqn": {**IQN, "game": "mpe2.simple_tag_v3:parallel_env", "max_cycles": 12, "engine": "executor"},
    "pettingzoo aec ppo": {**PPO, "game": "pettingzoo:classic/tictactoe-v3"},
    "gymnasium cartpole ppo": {**PPO, "game": "gymnasium:CartPole-v1", "agents": 2, "engine": "sync", "n_workers": 2},
}  # fmt: skip
RESUMED = {
    "resumed hunt iqn": ({**HUNT, "engine": "executor", "n_workers": 2}, "sequential"),
    "resumed hunt iqn lag": ({**HUNT, "engine": "vectorized", "lag": 1}, "sync"),
    "resumed cage2 ppo": ({**CAGE, "engine": "vectorized"}, "executor"),
    "resumed deaths ppo": ({**PPO, "game": "remuda.testing:RESPAWN", "engine": "sync", "n_workers": 2}, "threads"),
    "resumed mixed herd": (
        {**HUNT, "agents": 3, "learners": {"0": "iqn", "1-2": "ppo"}, "layers": [16]}, "executor"
    ),
}  # fmt: skip
COMMON: dict[str, Any] = {
    "total_episodes": 24, "evaluate_episodes": 4, "checkpoint_every": 1, "deterministic": True, "device": "cpu",
    "pictures": False, "seed": 11,
}  # fmt: skip


def machine_type() -> dict[str, str]:
    """What the bits of a result depend on."""
    versions = {"numpy": np.__version__, "torch": torch.__version__, "numba": numba.__version__}
    return {
        "processor": processor(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        **versions,
    }


def processor() -> str:
    """Vendor and family of the processor: with the same instructions, MKL computes other bits on another vendor's."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if {"vendor_id", "cpu family", "model"} <= facts.keys():
            return f"{facts['vendor_id']} family {facts['cpu family']} model {facts['model']}"
    return platform.processor()


def train(folder: Path, name: str) -> remuda.Run:
    """Train a plan; one in RESUMED is stopped after its second round and resumed with another engine."""
    out = folder / name.replace(" ", "-").replace(",", "")
    if name in PLANS:
        return remuda.train(out=out, quiet=True, **{**COMMON, **PLANS[name]})
    plan, engine = RESUMED[name]
    stopped = remuda.train(out=out, quiet=True, callbacks=[lambda rows: rows[0]["round"] < 2], **{**COMMON, **plan})
    assert not stopped.result["finished"], name
    return remuda.resume(stopped.path, engine=engine, quiet=True)


def fingerprint(run: remuda.Run) -> dict[str, Any]:
    """Everything of a run that must not change."""
    digest = hashlib.sha256()
    with (run.path / "metrics.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            digest.update(repr([(name, row[name]) for name in sorted(row) if name != "wall_s"]).encode())
    result = run.result
    return {
        "weights_sha256": result["weights_sha256"],
        "evaluation": result["evaluation"]["mean_return"],
        "updates": result["updates_per_agent"],
        "agent_steps": result["agent_steps"],
        "metrics_sha256": digest.hexdigest(),
    }


def fingerprints(say: Callable[[str], None], words: list[str]) -> dict[str, dict[str, Any]]:
    """Train all plans, or those that have one of the words in their names."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in (*PLANS, *RESUMED):
            if words and not any(word in name for word in words):
                continue
            began = time.perf_counter()
            found[name] = fingerprint(train(Path(folder), name))
            say(f"{name:32s} {found[name]['weights_sha256'][:16]} {time.perf_counter() - began:6.1f} s")
    return found


def same_but_for_engine(names: Iterable[str]) -> list[list[str]]:
    """Plans that must have one fingerprint: their settings are equal, but for engine and number of workers."""
    groups: dict[str, list[str]] = {}
    known = PLANS | {name: plan for name, (plan, _) in RESUMED.items()}
    for name in names:
        plan = known[name]
        decisive = {key: value for key, value in plan.items() if key not in ("engine", "n_workers")}
        groups.setdefault(json.dumps(decisive, sort_keys=True), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def engines_agree(plans: dict[str, dict[str, Any]]) -> bool:
    """Whether plans that differ only in their engine have one fingerprint; says which do not."""
    groups = same_but_for_engine(plans)
    wrong = [group for group in groups if any(plans[name] != plans[group[0]] for name in group)]
    for group in wrong:
        hashes = (f"{name} {plans[name]['weights_sha256'][:16]}" for name in group)
        print(f"ENGINES DIFFER: {', '.join(hashes)}")
    print(f"{len(groups) - len(wrong)} of {len(groups)} groups of plans that differ only in their engine agree")
    return not wrong


def main(words: list[str]) -> int:
    """Record or compare, as the first word says."""
    if len(words) < 2 or words[0] not in ("record", "compare"):
        print(__doc__)
        return 2
    path = Path(words[1])
    if words[0] == "record":
        plans = json.loads(path.read_text(encoding="utf-8"))["plans"] if words[2:] else {}
        plans = {name: own for name, own in plans.items() if name in PLANS or name in RESUMED}
        plans |= fingerprints(print, words[2:])
        path.write_text(json.dumps({"machine": machine_type(), "plans": plans}, indent=1), encoding="utf-8")
        return not engines_agree(plans)
    recorded = json.loads(path.read_text(encoding="utf-8"))
    found = fingerprints(print, words[2:])
    agree = engines_agree(found)
    if recorded["machine"] != machine_type():
        print(f"not compared: {path} was recorded on {recorded['machine']}, this is {machine_type()}")
        return 2 if agree else 1
    expected = {name: own for name, own in recorded["plans"].items() if not words[2:] or name in found}
    wrong = [name for name, own in expected.items() if found.get(name) != own]
    for name in wrong:
        print(f"DIFFERS {name}: {recorded['plans'][name]} is now {found.get(name)}")
    print(f"{len(expected) - len(wrong)} of {len(expected)} plans have the same fingerprint")
    return bool(wrong) or not agree


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
