"""Every kind of policy on every engine: the same weights as the sequential engine, also after stop and resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from torch import Tensor, nn

import remuda
from remuda.engines.table import ENGINES


class OwnBody(nn.Module):
    """Convolutions and a lazy layer: a body as docs/networks.md shows one."""

    def __init__(self, obs_shape: tuple[int, ...], frames: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(frames * obs_shape[2], 3, 2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(width)
        )

    def forward(self, frames: Tensor) -> Tensor:
        features: Tensor = self.layers(frames.permute(0, 1, 4, 2, 3).flatten(1, 2))  # (rows, frames * channels, …)
        return features


class Compass(gymnasium.Env[dict[str, Any], np.ndarray[Any, Any]]):
    """Pays for two numbers that point where the needle shows; a Dict with a Tuple in it is observed."""

    observation_space = spaces.Dict(
        needle=spaces.Box(-1, 1, (2,)), dials=spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(2)))
    )
    action_space = spaces.Box(-1, 1, (2,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._turns = 0
        return self._observe(), {}

    def _observe(self) -> dict[str, Any]:
        self._needle = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        dials = (int(self.np_random.integers(3)), self.np_random.integers(2, size=2).astype(np.int8))
        return {"needle": self._needle, "dials": dials}

    def step(self, action: np.ndarray[Any, Any]) -> Any:
        reward, self._turns = float(action @ self._needle), self._turns + 1
        return self._observe(), reward, self._turns == 5, False, {}


PPO: dict[str, Any] = {"learner": "ppo", "layers": [8], "passes": 2, "minibatches": 2}
IQN: dict[str, Any] = {
    "learner": "iqn", "layer": 8, "frames": 1, "quantiles": 3, "acting_quantiles": 3, "batch_size": 12,
    "updates_per_episode": 2.0,
}  # fmt: skip
ODD = "remuda.testing.odd_games"
RECALL: dict[str, Any] = {"game": "remuda.testing.recall:RECALL", "symbols": 3, "delay": 2, "turns": 9}
CONTINUOUS: dict[str, Any] = {"continuous_actions": True, "max_cycles": 6}  # of mpe2
POLICIES: dict[str, dict[str, Any]] = {
    "box": {"game": "remuda.testing.odd_games:STEERING", **PPO, "turns": 6},
    "box with a predicted spread": {
        "game": "remuda.testing.odd_games:STEERING",
        **PPO,
        "turns": 6,
        "spread": "predicted",
    },
    "multidiscrete": {"game": "remuda.testing.odd_games:LEVERS", **PPO, "turns": 6},
    "continuous simple_tag": {**PPO, "game": "mpe2.simple_tag_v3:parallel_env", **CONTINUOUS},
    "gru": {**RECALL, **PPO, "body": "gru", "features": 8, "sequence": 4},
    "lstm, lives that end": {**PPO, "game": f"{ODD}:RESPAWN", "body": "lstm", "features": 8, "sequence": 3},
    "gru on box": {**PPO, "game": f"{ODD}:STEERING", "turns": 6, "body": "gru", "features": 8},
    "gru, privileged critic": {**RECALL, **PPO, "body": "gru", "features": 8, "critic": "both"},
    "cnn": {**PPO, "game": f"{ODD}:BRIGHT_ROW", "turns": 6, "body": "cnn", "features": 8, "frames": 2},
    "iqn with gru": {**RECALL, **IQN, "body": "gru", "burn_in": 2, "sequence": 4, "n_step": 2},
    "iqn with lstm, absences": {**IQN, "game": f"{ODD}:ERRANDS", "body": "lstm", "burn_in": 1, "sequence": 3},
    "gru, absences": {**PPO, "game": f"{ODD}:ERRANDS", "body": "gru", "features": 8, "frames": 2},
    "iqn with cnn": {**IQN, "game": f"{ODD}:BRIGHT_ROW", "turns": 6, "body": "cnn", "frames": 2},
    "iqn with gru, forbidden actions": {**IQN, "game": f"{ODD}:MASKED", "body": "gru"},
    "privileged critic": {**RECALL, **PPO, "critic": "both", "normalise_observations": True},
    "cage2, privileged critic": {**PPO, "game": "cage2", "steps": 9, "red": "mixed", "critic": "both"},
    "cage2, a critic of the state alone, gru": {
        **PPO,
        "game": "cage2",
        "steps": 9,
        "critic": "state",
        "body": "gru",
        "features": 8,
    },
    "own convolutions": {**PPO, "game": f"{ODD}:BRIGHT_ROW", "turns": 6, "body": f"{__name__}:OwnBody", "features": 8},
    "iqn, own convolutions": {**IQN, "game": f"{ODD}:BRIGHT_ROW", "turns": 6, "body": f"{__name__}:OwnBody"},
    "dict and tuple observed, box": {**PPO, "game": f"{__name__}:Compass", "turns": 6},
    "continuous simple_spread": {**PPO, "game": "mpe2.simple_spread_v3:parallel_env", **CONTINUOUS},
}
PLAN: dict[str, Any] = {
    "worlds": 3, "total_episodes": 12, "episodes_per_update": 4, "evaluate_episodes": 2, "checkpoint_every": 1,
    "pictures": False, "seed": 11,
}  # fmt: skip


def train(out: Path, policy: str, callback: Any = None, **settings: Any) -> remuda.Run:
    plan = {**PLAN, **POLICIES[policy], **settings}
    return remuda.train(out=out, quiet=True, callbacks=[callback] if callback else [], **plan)


@pytest.fixture(scope="module")
def sequential_result(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The result of the sequential engine, trained once per policy."""
    results: dict[str, dict[str, Any]] = {}

    def result(policy: str) -> dict[str, Any]:
        if policy not in results:
            out = tmp_path_factory.mktemp("sequential_result") / "run"
            results[policy] = train(out, policy, engine="sequential", deterministic=True).result
        return results[policy]

    return result


def combinations() -> list[Any]:
    """All of policy × engine. Half of the policies are quick on worker processes; everything else is slow."""
    return [
        pytest.param(
            policy,
            engine,
            marks=[] if engine == "executor" and j % 2 == 0 else [pytest.mark.slow],
            id=f"{policy}-{engine}",
        )
        for engine in ENGINES
        for j, policy in enumerate(POLICIES)
    ]


@pytest.mark.parametrize(("policy", "engine"), combinations())
def test_it_trains_stops_and_resumes_on_every_engine(
    tmp_path: Path, sequential_result: Any, policy: str, engine: str
) -> None:
    promised = ENGINES[engine].deterministic
    settings = {"engine": engine, "n_workers": 2, "deterministic": promised}
    stopped = train(tmp_path / "run", policy, callback=lambda rows: rows[0]["round"] < 2, **settings)
    assert not stopped.result["finished"]
    again, one = remuda.resume(stopped.path, quiet=True).result, sequential_result(policy)
    assert again["finished"]
    for name in ("episodes", "updates_per_agent", "agent_steps"):
        assert again[name] == one[name]
    if promised:
        assert again["weights_sha256"] == one["weights_sha256"]
