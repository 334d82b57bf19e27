"""Learners on Ray: the weights of sequential for any herd, any number of learners and nodes, and after a change."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import remuda
from ray_nodes import RayNodes, ray_of_this_process

TREASURE: dict[str, Any] = {"game": "treasurehunt", "agents": 5, "height": 7, "width": 7, "turns": 9, "spawn": 0.1}
CAGE: dict[str, Any] = {"game": "cage2", "steps": 9, "red": "mixed", "green": True}
IQN: dict[str, Any] = {
    "learner": "iqn", "layer": 16, "quantiles": 4, "acting_quantiles": 4, "frames": 2, "batch_size": 8,
    "replay_size": 200,
}  # fmt: skip
PPO: dict[str, Any] = {"learner": "ppo", "layers": [16, 8], "frames": 2, "passes": 2, "minibatches": 2}
OWN: dict[str, Any] = {
    "learner": "dqn:DQN", "learners": {"2-4": "a2c:A2C"}, "DQN.hidden": 12, "a2c:A2C.hidden": 9, "frames": 2,
    "batch_size": 8, "passes": [1, 1, 2, 3, 1], "minibatches": 2, "updates_per_episode": [1.0, 2.5, 1.0, 1.0, 1.0],
}  # fmt: skip
HERDS: dict[str, dict[str, Any]] = {
    "treasurehunt, iqn": {**TREASURE, **IQN},
    "treasurehunt, ppo": {**TREASURE, **PPO, "normalise_observations": True},
    "treasurehunt, ppo with a gru": {**TREASURE, "learner": "ppo", "body": "gru", "features": 8, "sequence": 4},
    "treasurehunt, iqn with a gru": {**TREASURE, **IQN, "body": "gru", "sequence": 4, "frames": 1},
    "treasurehunt, dqn and a2c of the examples": {**TREASURE, **OWN},
    "cage2, iqn": {**CAGE, **IQN},
    "cage2, ppo": {**CAGE, **PPO},
    "cage2, ppo with a gru": {**CAGE, "learner": "ppo", "body": "gru", "features": 8, "sequence": 4},
    "cage2, dqn of the examples": {**CAGE, "learner": "dqn:DQN", "hidden": 12, "frames": 2, "batch_size": 8},
    "cage2, a2c of the examples": {**CAGE, "learner": "a2c:A2C", "hidden": 9, "passes": 2, "minibatches": 2},
}
PLAN: dict[str, Any] = {
    "worlds": 3, "total_episodes": 12, "episodes_per_update": 4, "evaluate_episodes": 2, "checkpoint_every": 4,
    "pictures": False, "seed": 11, "device": "cpu", "deterministic": True, "start_limit_s": 600,
}  # fmt: skip
RAY: dict[str, Any] = {"engine": "ray", "n_workers": 1, "actor_cpus": 0.5, "learner_cpus": 0.5}

pytestmark = pytest.mark.slow  # tests/promises/faults/test_ray_learners.py has one of them


@pytest.fixture(scope="module", params=[1, 3], ids=["one_node", "three_nodes"])
def nodes(request: pytest.FixtureRequest) -> int:
    """How many nodes Ray has."""
    return int(request.param)


@pytest.fixture(scope="module")
def place(nodes: int) -> Iterator[dict[str, Any]]:
    """Settings for a Ray with one node or three."""
    if nodes == 1:
        with ray_of_this_process():
            yield {}
        return
    cluster = RayNodes(cpus=1)
    yield {"address": cluster.address}
    cluster.end()


def nodes_that_learn() -> set[str]:
    """Where Ray has reserved the learners' places; the groups of runs that ended are listed as removed."""
    from ray.util import placement_group_table

    groups = [group for group in placement_group_table().values() if group["state"] == "CREATED"]
    return {node for group in groups for node in group["bundles_to_node_id"].values()}


def train(out: Path, herd: str, callback: Any = None, **settings: Any) -> remuda.Run:
    plan = {**PLAN, **HERDS[herd], **settings}
    return remuda.train(out=out, quiet=True, callbacks=[callback] if callback else [], **plan)


@pytest.fixture(scope="module")
def sequential_result(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The result of the sequential engine, trained once per herd."""
    results: dict[str, dict[str, Any]] = {}

    def result(herd: str) -> dict[str, Any]:
        if herd not in results:
            results[herd] = train(tmp_path_factory.mktemp("whole") / "run", herd, engine="sequential").result
        return results[herd]

    return result


@pytest.mark.parametrize(("herd", "learners"), list(product(HERDS, (1, 2, 4))))
def test_learner_actors_give_the_bits_of_sequential(
    tmp_path: Path, sequential_result: Any, place: dict[str, Any], nodes: int, herd: str, learners: int
) -> None:
    where: set[str] = set()
    settings = {**RAY, **place, "n_learners": learners}
    run = train(tmp_path / "run", herd, callback=lambda rows: where.update(nodes_that_learn()), **settings).result
    one = sequential_result(herd)
    for name in ("weights_sha256", "episodes", "updates_per_agent", "agent_steps", "finished"):
        assert run[name] == one[name]
    named = [own["name"] for own in run["processes"] if own["name"].startswith("learner")]
    assert len(named) == min(learners, len(one["updates_per_agent"]))
    assert len(where) == min(len(named), nodes)


@pytest.mark.parametrize("before", ["ray", "sequential"])
@pytest.mark.parametrize("herd", HERDS)
def test_a_run_changes_between_four_learner_actors_and_sequential(
    tmp_path: Path, sequential_result: Any, place: dict[str, Any], herd: str, before: str
) -> None:
    on_ray = before == "ray"
    settings = {**RAY, **place, "n_learners": 4} if on_ray else {"engine": "sequential", **_claims()}
    stopped = train(tmp_path / "run", herd, callback=lambda rows: rows[0]["round"] < 2, **settings)
    assert not stopped.result["finished"]
    after = {"engine": "sequential"} if on_ray else {"engine": "ray", "n_workers": 1, "n_learners": 4, **place}
    again = remuda.resume(stopped.path, quiet=True, **after)
    assert again.result["finished"]
    assert again.result["weights_sha256"] == sequential_result(herd)["weights_sha256"]


def _claims() -> dict[str, Any]:
    """What actors claim: resume changes where a run learns, and this stays."""
    return {name: value for name, value in RAY.items() if name.endswith("cpus")}
