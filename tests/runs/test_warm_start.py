"""A run that begins with what another one learned."""

from __future__ import annotations

from typing import Any

import pytest

import remuda
from remuda.core.errors import ConfigError, RunError
from remuda.runs.replay import replay

IQN_ALONE = ("layer", "quantiles", "acting_quantiles", "batch_size", "replay_size")
PPO: dict[str, Any] = {"learner": "ppo", "layers": [8], "minibatches": 2, "passes": 2, **dict.fromkeys(IQN_ALONE)}


@pytest.mark.promise
@pytest.mark.parametrize("learner", [{}, PPO], ids=["iqn", "ppo"])
@pytest.mark.parametrize("engine", ["sequential", "executor"])
def test_every_engine_begins_where_another_run_ended(
    trained: Any, train: Any, learner: dict[str, Any], engine: str
) -> None:
    source = trained(**learner)
    plan = {"warm_start": str(source.path), "total_episodes": 6, **learner}
    whole = trained(engine="vectorized", **plan)
    other = train("other", engine=engine, n_workers=2, deterministic=True, **plan)
    assert other.result["weights_sha256"] == whole.result["weights_sha256"]
    assert whole.result["weights_sha256"] not in (
        source.result["weights_sha256"],
        trained(**{**plan, "warm_start": None}).result["weights_sha256"],
    )
    assert whole.result["updates_per_agent"] < source.result["updates_per_agent"]  # its own, not those before


def test_it_begins_with_exactly_those_weights(trained: Any, train: Any) -> None:
    source = trained(**PPO)
    still = train(warm_start=str(source.path), total_episodes=3, **{**PPO, "lr": 1e-30})
    assert still.result["weights_sha256"] == source.result["weights_sha256"]


def test_it_is_resumed_like_any_other(trained: Any, train: Any, copy_of: Any) -> None:
    source = copy_of(trained(**PPO))
    plan = {"warm_start": str(source.path), "total_episodes": 12, **PPO}
    whole = train("whole", **plan)
    stopped = train("stopped", lambda rows: rows[0]["round"] < 2, **plan)
    source.path.rename(source.path.with_name("elsewhere"))  # no longer needed
    assert remuda.resume(stopped.path, quiet=True).result["weights_sha256"] == whole.result["weights_sha256"]


def test_it_can_be_replayed(trained: Any, train: Any) -> None:
    plan = {
        "engine": "actor-learner",
        "n_workers": 2,
        "log_schedule": True,
        "total_episodes": 9,
        "deterministic": False,
    }
    run = train(warm_start=str(trained().path), **plan)
    assert replay(run.path) == run.result["weights_sha256"]


def test_another_herd_is_refused(trained: Any, train: Any, tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=r"warm_start=.* does not fit this herd"):
        train("wider", warm_start=str(trained(**PPO).path), **{**PPO, "layers": [9]})
    with pytest.raises(ConfigError, match="does not fit this herd"):
        train("other", warm_start=str(trained().path), **PPO)
    with pytest.raises(RunError, match="is not a run"):
        train("nothing", warm_start=str(tmp_path / "nowhere"))
    assert not [path for path in tmp_path.iterdir() if path.name in ("wider", "other", "nothing")]
