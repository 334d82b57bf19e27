"""A study on all cores: its wall time against the processor time of single runs, shared evenly by the cores.

Ten seeds of two variants of PPO on CAGE 2 (`benchmarks/studies/short.yaml`). The ideal is the processor time of as many
single runs, divided by the cores: of training alone, and of the whole command with imports and loading. The same seeds
are also run alone, and must end with the same weights.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import machine, remuda
from remuda.core.machine import cores
from remuda.core.yamlfile import read_yaml

FILE = Path(__file__).parent / "studies" / "short.yaml"
ALONE = 3
"""Seeds of each variant that are also run alone."""


def main(out: Path | None = None, alone: int = ALONE) -> None:
    """Run the study, then `alone` seeds of each variant alone; `out` keeps the study."""
    content = read_yaml(FILE)
    settings = [f"{name}={value}" for name, value in content["settings"].items() if name != "game"]
    print(f"\nA study of {content['seeds']} seeds × {len(content['variants'])} variants\n  {machine()}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        remuda("train", "cage2", "--total-episodes", "100", "learner=ppo", "--out", f"{folder}/warm-up")  # compiles
        began = time.perf_counter()
        done = remuda("study", str(FILE), "--out", str(out or f"{folder}/study"))
        wall_s = time.perf_counter() - began
        in_study = {(run["variant"], run["seed"]): run for run in done["runs"]}
        training, whole = [], []
        for name, own in content["variants"].items():
            for seed in range(alone):
                words = [*settings, *(f"{key}={value}" for key, value in own.items()), "pictures=false", "n_workers=1"]
                before = _children_cpu_s()
                single = remuda(
                    "train", "cage2", *words, "--seed", str(seed), "--out", f"{folder}/{name.replace(' ', '-')}-{seed}"
                )
                assert single["weights_sha256"] == in_study[name, seed]["weights_sha256"], (name, seed)
                training.append(single["cpu_s"])
                whole.append(_children_cpu_s() - before)
    print(f"  {len(training)} runs alone have the same weights as in the study")
    beside = sum(run["cpu_s"] for run in in_study.values()) / len(in_study)
    mean = sum(training) / len(training)
    print(f"  processor time of a run's training: alone {mean:.1f} s, in the study {beside:.1f} s")
    print(f"  the study of {len(in_study)} runs took {wall_s:.1f} s on {cores()} cores")
    for what, seconds in (("training", training), ("the whole command", whole)):
        ideal = sum(seconds) / len(seconds) * len(in_study) / cores()
        print(f"  ideal by the processor time of {what}: {ideal:.1f} s, so {ideal / wall_s:.2f} of the ideal")


def _children_cpu_s() -> float:
    """Processor seconds of all commands so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None, *map(int, sys.argv[2:3]))
