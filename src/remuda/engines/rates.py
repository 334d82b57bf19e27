"""Measured rates of placements, kept among the user's cached files, so that `engine=auto` measures a plan only once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from remuda.core import session
from remuda.core.cached_files import write_cached
from remuda.core.capabilities import portable_only
from remuda.core.code_versions import hash_code, version_of
from remuda.core.kernels import cache_base, sources_hash
from remuda.core.machine import machine
from remuda.core.options import Options
from remuda.engines.trials import Candidate, Subject

FOLDER = "engines"
DECIDING = (
    "game", "options", "worlds", "learner", "learners", "learner_options", "round_episodes", "updates_per_episode",
    "lag", "parallel_actions", "precision", "n_workers",
)  # fmt: skip
"""Settings that the rates depend on; the seed, the length of the run and files are not among them."""


class CandidateRate(Options):
    """The rate of one placement."""

    engine: Literal["vectorized", "executor", "sync"]
    workers: int = Field(ge=1, le=4096)
    rate: float = Field(gt=0)


class Rates(Options):
    """What was measured of a plan."""

    round_s: float = Field(gt=0, description="of a whole round, on the first placement")
    placements: list[CandidateRate] = Field(min_length=1)

    @classmethod
    def of(cls, round_s: float, measured: Mapping[Candidate, float]) -> Rates:
        """From what trials returned."""
        rates: list[Any] = [{"engine": own.engine, "workers": own.workers, "rate": r} for own, r in measured.items()]
        return cls(round_s=round_s, placements=rates)

    def without_processes(self) -> Rates:
        """Only the placements in one process."""
        return Rates(round_s=self.round_s, placements=[one for one in self.placements if one.engine == "vectorized"])

    def ranked(self) -> list[tuple[Candidate, float]]:
        """The placements and their rates, the fastest first."""
        own = [(Candidate(one.engine, one.workers), one.rate) for one in self.placements]
        return sorted(own, key=lambda one: one[1], reverse=True)


def read_rates(subject: Subject) -> Rates | None:
    """What was measured before of a plan of this shape, on this machine and with this code; None if nothing was."""
    path = _path(subject)
    try:
        return None if path is None else Rates(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, ValidationError):
        return None  # measured again, and written anew


def write_rates(subject: Subject, rates: Rates) -> None:
    """Keep it; where nothing can be written, the next run measures again."""
    path = _path(subject)
    if path is not None:
        write_cached(path, rates.model_dump_json())


def _path(subject: Subject) -> Path | None:
    base = cache_base()
    return None if base is None else base / FOLDER / f"{_key(subject)}.json"


def _key(subject: Subject) -> str:
    """A hash of whatever the rates depend on."""
    plan = subject.plan
    facts = {
        **{name: getattr(plan, name) for name in DECIDING}, "turns": subject.spec.turns, "device": subject.device,
        "machine": machine(), "portable": portable_only(), "remuda": sources_hash(Path(__file__).parent),
    }  # fmt: skip
    text = json.dumps(facts, sort_keys=True, default=str)
    for name in plan.names():  # an object of a Python session has another name each time: its code counts
        found = session.find(name) if session.is_session_name(name) else None
        version = version_of(name) if found is None else hash_code(found)
        if version is not None:
            text = text.replace(name, version.hex())
    return hashlib.sha256(text.encode()).hexdigest()[:32]
