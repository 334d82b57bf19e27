"""Puts a trained run into the zoo: `python -m benchmarks.ship RUN cage2/generalist`.

It copies the plan, the result and the weights of the newest checkpoint, and nothing that learning alone needs.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from remuda.runs.directory import CONFIG, RESULT, RunDirectory, to_json
from remuda.runs.zoo import FOLDER

KEPT = ("game", "engine", "finished", "episodes", "cpu_s", "weights_sha256")


def ship(run: Path, name: str) -> Path:
    """Copy a finished run into the zoo under a new name."""
    opened, target = RunDirectory(run), FOLDER / name
    result = {key: opened.result[key] for key in KEPT}
    checkpoint = opened.checkpoint(only="policy")
    place = target / "checkpoints" / checkpoint.name
    place.mkdir(parents=True)
    for file in ("checkpoint.json", "policy.safetensors"):
        shutil.copy(checkpoint / file, place / file)
    shutil.copy(opened.path / CONFIG, target / CONFIG)
    (target / RESULT).write_text(to_json(result, indent=1) + "\n", encoding="utf-8")
    return target


if __name__ == "__main__":
    made = ship(Path(sys.argv[1]), sys.argv[2])
    print(made, json.loads((made / RESULT).read_text(encoding="utf-8"))["weights_sha256"])
