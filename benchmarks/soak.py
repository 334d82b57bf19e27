"""Soak test: an hour of training with faults. Does memory stay constant, and are all file descriptors closed?

The hook of the chaos tests kills, stops, slows down or raises in a worker every few seconds, at any point. Measured are
the memory (PSS) of the whole process tree and the open descriptors of the parent process, once the replay buffers are
full.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.harness import machine
from remuda.core.machine import tree_bytes

FAULT_TESTS = Path(__file__).parent.parent / "tests" / "promises" / "faults"
HOUR_S = float(os.environ.get("SOAK_S", "3600"))
SAMPLE_EVERY_S, FAULT_EVERY_S = 5.0, 8.0
WITHIN = 0.05
PLAN = (
    "chaos:CHAOTIC", "agents=4", "turns=50", "worlds=8", "engine=actor-learner", "n_workers=2", "n_learners=2",
    "total_episodes=100000000", "layer=64", "frames=2", "batch_size=32", "replay_size=4096", "evaluate_every=2000",
    "evaluate_episodes=8", "checkpoint_every=1000", "checkpoint_every_s=30", "pictures=false", "device=cpu",
    "max_failures=1.0", "turn_limit_s=10", "update_limit_s=10",
)  # fmt: skip
KINDS = ["worker-kill", "worker-stop", "worker-raise", "worker-slow"]
PHASES = dict.fromkeys(("collect", "hand-over", "update", "publish", "save"), 10**9)


def main() -> None:
    """Train, sample every few seconds, stop, and compare the second quarter of the time with the last."""
    sys.path.insert(0, str(FAULT_TESTS))
    import chaos  # the hook and the game, from the tests

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / chaos.WISHES).write_text(json.dumps({"phases": PHASES, "kinds": KINDS, "every_s": FAULT_EVERY_S}))
        environment = {**os.environ, "PYTHONPATH": str(FAULT_TESTS), chaos.FOLDER: name}
        command = [sys.executable, "-m", "remuda", "train", *PLAN, "--out", f"{name}/run"]
        with (folder / "stderr").open("w") as err:
            process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=err)
        samples: list[tuple[int, int]] = []
        began = time.monotonic()
        while process.poll() is None and time.monotonic() - began < HOUR_S:
            time.sleep(SAMPLE_EVERY_S)
            descriptors = len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
            samples.append((tree_bytes(process.pid), descriptors))
        alive = process.poll() is None
        process.terminate()
        process.wait(120)
        if not alive:
            raise SystemExit(f"the run ended by itself: {(folder / 'stderr').read_text()[-2000:]}")
        result = json.loads((folder / "run" / "result.json").read_text())
        faults = Counter(f"{fault.kind} in {fault.phase}" for fault in chaos.landed(folder))
    quarter = len(samples) // 4
    early, late = samples[quarter : 2 * quarter], samples[3 * quarter :]
    print(f"\nSoak, {HOUR_S:.0f} s, actor-learner, {result['episodes']:,} episodes\n  {machine()}")
    print(f"  {sum(faults.values())} faults landed: {dict(sorted(faults.items()))}")
    print(f"  {result['failures']}")
    for what, index, unit in (("memory of the tree", 0, 2**20), ("descriptors", 1, 1)):
        before, after = (statistics.median(sample[index] for sample in part) / unit for part in (early, late))
        print(f"  {what}: {before:,.1f} in the second quarter, {after:,.1f} in the last: {after / before - 1:+.1%}")
    print(f"  (wanted within {WITHIN:.0%}, and no more descriptors)")
