"""A run that was stopped half-way: its plan, its files, and what is said when it is used."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from hostile import listing, refusal

import remuda
from remuda.runs.checkpoint import CHECKPOINTS, INDEX
from remuda.runs.film import trained_bindings

PLAN: dict[str, Any] = {
    "agents": 1, "turns": 6, "learners": {"0": "iqn", "1-2": "ppo"}, "worlds": 2, "total_episodes": 12, "lag": 1,
    "layer": 8, "quantiles": 2, "acting_quantiles": 2, "iqn.frames": 2, "batch_size": 4, "replay_size": 32,
    "layers": [8], "minibatches": 2, "checkpoint_every": 2, "keep_checkpoints": 3, "evaluate_every": 4,
    "evaluate_episodes": 2, "deterministic": True, "device": "cpu", "pictures": False,
}  # fmt: skip
NEWEST, OLDER = "000000006", "000000004"
FILES = (INDEX, "learner.safetensors", "policy.safetensors", "acting.safetensors")
DTYPES = ["F64", "F32", "F16", "BF16", "I64", "I32", "U8", "BOOL", "C64", "F8_E5M2", "F4", "OBJECT", "", "U64"]


def last_round(rows: list[dict[str, Any]]) -> bool:
    """A callback that ends the run after a round."""
    return False


def newest(run: Path) -> Path:
    return run / CHECKPOINTS / NEWEST


def seal(folder: Path, index: Any) -> None:
    """Write an index whose checksums are right: whoever made the files made it too."""
    if isinstance(index, dict):
        files = index.get("files")
        if isinstance(files, dict):
            for path in folder.iterdir():
                if path.name in files and path.is_file():
                    files[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
        index.pop("digest", None)
        index["digest"] = hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()
    (folder / INDEX).write_text(json.dumps(index))


def index_of(run: Path) -> dict[str, Any]:
    index: dict[str, Any] = json.loads((newest(run) / INDEX).read_text())
    del index["digest"]
    return index


def resume(run: Path, name: str | None = None) -> str | None:
    """What is said if going on for a round is refused; then nothing may have been altered."""
    before = listing(run / CHECKPOINTS)
    refused = refusal(lambda: remuda.resume(run, checkpoint_name=name, quiet=True, callbacks=[last_round]))
    assert refused is None or listing(run / CHECKPOINTS) == before, "a refused checkpoint changed the run"
    return refused


def use(run: Path) -> list[str | None]:
    """What is said when it is looked for, played with and gone on from."""
    return [
        refusal(lambda: remuda.Run(run).checkpoint()),
        refusal(lambda: trained_bindings(remuda.Run(run))),
        resume(run),
    ]
