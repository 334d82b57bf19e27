"""A study on all cores: its wall time against the processor time of single runs, shared evenly by the cores.

Ten seeds of two variants of PPO on CAGE 2 (`benchmarks/studies/short.yaml`). The ideal is the processor time of as many
single runs, divided by the cores. The same seeds are also run alone, and must end with the same weights.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.harness import machine, remuda
from remuda.core.machine import cores
from remuda.core.yamlfile import read_yaml

FILE = Path(__file__).parent / "studies" / "short.yaml"
ALONE = 2
"""Seeds of each variant that are also run alone."""


def main() -> None:
    """Run the study, then some of its runs alone."""
    content = read_yaml(FILE)
    settings = [f"{name}={value}" for name, value in content["settings"].items() if name != "game"]
    print(f"\nA study of {content['seeds']} seeds × {len(content['variants'])} variants\n  {machine()}")
    with tempfile.TemporaryDirectory() as folder:
        remuda("train", "cage2", "--total-episodes", "100", "learner=ppo", "--out", f"{folder}/warm-up")  # compiles
        began = time.perf_counter()
        done = remuda("study", str(FILE), "--out", f"{folder}/study")
        wall_s = time.perf_counter() - began
        in_study = {(run["variant"], run["seed"]): run for run in done["runs"]}
        seconds = []
        for name, own in content["variants"].items():
            for seed in range(ALONE):
                words = [*settings, *(f"{key}={value}" for key, value in own.items()), "pictures=false", "n_workers=1"]
                out = f"{folder}/{name.replace(' ', '-')}-{seed}"
                alone = remuda("train", "cage2", *words, "--seed", str(seed), "--out", out)
                assert alone["weights_sha256"] == in_study[name, seed]["weights_sha256"], (name, seed)
                seconds.append(alone["cpu_s"])
    mean = sum(seconds) / len(seconds)
    ideal = mean * len(in_study) / cores()
    print(f"  {len(seconds)} runs alone: the same weights, {mean:.1f} s of processor time each")
    print(f"  the study took {wall_s:.1f} s, ideal {ideal:.1f} s on {cores()} cores: {ideal / wall_s:.2f} of the ideal")


if __name__ == "__main__":
    main()
