"""A run: a directory with its plan, metrics, checkpoints and pictures; here it is read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from remuda import checkpoint
from remuda.config import Plan, read_yaml
from remuda.errors import CheckpointError, RunError
from remuda.game import GameSpec, Group
from remuda.herd import LEARNERS, Part, assign, learner_options
from remuda.policy import Policy, RandomPolicy
from remuda.settings import complete, spec_of
from remuda.telemetry.metrics import Table, read_table
from remuda.telemetry.recorder import Row

CONFIG = "config.yaml"
RESULT = "result.json"


class Run:
    """A run directory, for reading."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if not (self.path / CONFIG).is_file():
            raise RunError(f"{self.path} is not a run: it has no {CONFIG}")

    @cached_property
    def plan(self) -> Plan:
        """What the run computes."""
        return complete(Plan.read(read_yaml(self.path / CONFIG), f"{self.path / CONFIG}"))

    @cached_property
    def spec(self) -> GameSpec:
        """The shape of its game."""
        return spec_of(self.plan)

    @cached_property
    def parts(self) -> list[Part]:
        """Who plays which agents."""
        return assign(self.plan, self.spec)

    @property
    def metrics(self) -> Table:
        """Training, one row per round and agent, as columns."""
        return read_table(self.path / "metrics.csv")

    @property
    def evaluations(self) -> Table:
        """Evaluations, one row per evaluation and agent, as columns."""
        return read_table(self.path / "evaluations.csv")

    @property
    def result(self) -> Row:
        """The summary written when training ended."""
        try:
            result: Row = json.loads((self.path / RESULT).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise RunError(f"{self.path} has no result yet: finish it with `remuda resume {self.path}`") from None
        return result

    @property
    def finished(self) -> bool:
        """Whether training has come to the end of the plan and was summed up."""
        return (self.path / RESULT).is_file() and bool(self.result.get("finished"))

    def changed(self, settings: Mapping[str, Any]) -> Plan:
        """Its plan with some settings changed, checked again."""
        return Plan.read({**self.plan.model_dump(), **settings}, "the plan")

    def checkpoints(self) -> list[Path]:
        """Its checkpoints, newest first."""
        folder = self.path / "checkpoints"
        names = {path.name.removeprefix(".").removesuffix(".old") for path in folder.glob("*[0-9]*")}
        return sorted((folder / name for name in names if name.isdigit()), reverse=True)

    def checkpoint(self, name: str | None = None, only: str | None = None) -> Path:
        """The newest checkpoint, or the one asked for; refused with the newest good one if it is damaged."""
        found = self.checkpoints()
        if not found:
            raise CheckpointError(f"{self.path} has no checkpoint yet: train it again from the start")
        wanted = self.path / ("best" if name == "best" else f"checkpoints/{name}") if name else found[0]
        if not checkpoint.intact(wanted, only):
            good = next((path for path in found if checkpoint.intact(path, only)), None)
            advice = f"the last good one is {good.name}: use --checkpoint {good.name}" if good else "none is left"
            raise CheckpointError(f"checkpoint {wanted} is damaged or missing; {advice}")
        return wanted

    def policy(self, agents: Sequence[int], group: Group, device: str, name: str | None = None) -> Policy:
        """A player with the trained weights of these agents, for a group they fit."""
        parts = [next(p for p in self.parts if p.herd_first <= a < p.herd_first + p.agents) for a in agents]
        players = {part.player for part in parts}
        if players == {"random"}:
            return RandomPolicy(group, len(agents))
        if len(players) != 1 or not parts[0].learns:
            raise RunError(f"agents {list(agents)} of {self.path} are not all of one trained kind: {sorted(players)}")
        own = self.spec.groups[parts[0].group]
        if (own.obs_shape, own.actions) != (group.obs_shape, group.actions):
            raise RunError(
                f"agents of {self.path} see {own.obs_shape} and have {own.actions} actions; "
                f"here they would see {group.obs_shape} and have {group.actions}"
            )
        player = parts[0].player
        options = learner_options(self.plan, player)
        policy = LEARNERS[player].make_policy(group, len(agents), options, self.plan.precision, device)
        arrays = checkpoint.read(self.checkpoint(name, only="policy"), "policy")
        weights = []
        for agent in agents:
            prefix = f"{agent}/"
            named = {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
            weights.append({n: a.astype(np.float32, copy=False) for n, a in named.items()})
        try:
            policy.load_weights(weights)
        except (KeyError, ValueError) as error:
            raise CheckpointError(f"the weights in {self.path} do not fit its own plan: {error}") from None
        return policy


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON as the standard has it: what is not a number is null."""

    def plain(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: plain(own) for key, own in item.items()}
        if isinstance(item, list | tuple):
            return [plain(own) for own in item]
        return None if isinstance(item, float) and not math.isfinite(item) else item

    return json.dumps(plain(value), indent=indent, allow_nan=False)
