"""Learners that cannot learn: refused before anything is written, or the run says so at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import remuda
from remuda.core.errors import ConfigError, LearnerError
from remuda.testing.broken_learners import Sound

SMALL: dict[str, Any] = {
    "agents": 2, "worlds": 2, "total_episodes": 8, "evaluate_episodes": 2, "engine": "vectorized", "quiet": True,
    "pictures": False, "updates_per_episode": 1.0, "frames": 1, "batch_size": 4,
}  # fmt: skip
GAME = "remuda.testing.bandit:BANDIT"


class PerRow(Sound):
    """A loss per row."""

    @staticmethod
    def loss(net: nn.Module, target: nn.Module, batch: Any, options: Any) -> Any:
        return net(batch.obs).square().mean(dim=1)


class Unnamed(Sound):
    """A metric that `metrics` does not name."""

    @staticmethod
    def loss(net: nn.Module, target: nn.Module, batch: Any, options: Any) -> Any:
        values = net(batch.obs)
        return values.square().mean(), {"largest": values.max()}


class Unreturned(Sound):
    """A metric that `loss` does not return."""

    metrics = (*Sound.metrics, "largest")


class Typo(Sound):
    """A field that batches do not have."""

    @staticmethod
    def loss(net: nn.Module, target: nn.Module, batch: Any, options: Any) -> Any:
        return net(batch.observations).mean()


class Undefined(Sound):
    """A name that is not defined."""

    @staticmethod
    def loss(net: nn.Module, target: nn.Module, batch: Any, options: Any) -> Any:
        return functional.mse_loss(net(batch.obs), batch.rewards)  # type: ignore[name-defined]  # noqa: F821


class FewArguments(Sound):
    """A loss without `target`."""

    @staticmethod
    def loss(net: nn.Module, batch: Any, options: Any) -> Any:  # type: ignore[override]
        return net(batch.obs).mean()


class Constant(Sound):
    """A loss that does not depend on the network."""

    @staticmethod
    def loss(net: nn.Module, target: nn.Module, batch: Any, options: Any) -> Any:
        return torch.tensor(1.0)


class NeedsData(Sound):
    """A loss that has nothing to say about zeros."""

    @staticmethod
    def loss(net: nn.Module, target: nn.Module, batch: Any, options: Any) -> Any:
        if not batch.obs.any():
            raise ValueError("no data")
        return Sound.loss(net, target, batch, options)


class OwnBatches(Sound):
    """A loss of batches that it makes itself, with a field that those of the trial lack."""

    def _batch(self, first: int, last: int, clock: int) -> Any:
        *others, discounts, mask = super()._batch(first, last, clock)
        return (*others, torch.full_like(discounts, 7), mask)

    @staticmethod
    def loss(net: nn.Module, target: nn.Module, batch: Any, options: Any) -> Any:
        if not (batch.discounts == 7).all():
            raise AttributeError("no such field")
        return Sound.loss(net, target, batch, options)


class Quantiles(Sound):
    """Values of another shape, and no q_values."""

    @staticmethod
    def network(group: remuda.Group, options: Any) -> nn.Module:
        return nn.Sequential(Sound.network(group, options), nn.Unflatten(1, (-1, 1)))


class Channels(Sound):
    """A network that expects other inputs."""

    @staticmethod
    def network(group: remuda.Group, options: Any) -> nn.Module:
        return nn.Conv2d(3, 8, 3)


class Critic(remuda.OnPolicyLearner):
    """Logits without values."""

    @staticmethod
    def network(group: remuda.Group, options: Any) -> nn.Module:
        return Sound.network(group, options)

    @staticmethod
    def loss(net: nn.Module, batch: Any, options: Any) -> Any:
        return net(batch.obs).mean()


class WideCritic(Critic):
    """Values with a column too many."""

    @staticmethod
    def logits_and_values(net: nn.Module, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return net(obs), net(obs)[:, :1]


class Raises(Sound):
    """Raises in every update."""

    def update(self, count: int) -> None:
        raise RuntimeError("out of luck")


class RefusedLate(Sound):
    """Refused by remuda in the third round."""

    rounds = 3

    def update(self, count: int) -> None:
        if self.updates >= 2 * (self.rounds - 1):
            raise ConfigError("the data of this round does not fit")
        super().update(count)


class RefusedAtOnce(RefusedLate):
    """Refused by remuda in the first round, where the test before the run sees nothing."""

    rounds = 1


REFUSED = {
    PerRow: r"the loss of PerRow should be one number, a tensor of shape \(\), not \(4,\)",
    Unnamed: r'write metrics = \(\*remuda\.OffPolicyLearner\.metrics, "largest"\)',
    Unreturned: r"write metrics = \(\*remuda\.OffPolicyLearner\.metrics,\)$",
    Typo: r"^the loss of Typo raised AttributeError: .*observations.* \(.*test_refused_learners\.py, line \d+\)$",
    Undefined: r"^the loss of Undefined raised NameError: .*functional.* \(.*test_refused_learners\.py, line \d+\)$",
    FewArguments: r"^the loss of FewArguments raised TypeError: .*positional.*test_refused_learners\.py, line \d+\)$",
    Constant: r"^the loss of Constant has no gradient: .* \(.*test_refused_learners\.py, line \d+\)$",
    Quantiles: r"it should give \(16, 3\).*or Quantiles should override q_values\(net, obs\)",
    Channels: r"raised RuntimeError.*its input is \(rows, frames, \*obs_shape\) = \(16, 1, 3\)",
    Critic: r"should return logits and values.*override logits_and_values\(net, obs\)",
    WideCritic: r"values of WideCritic have shape \(\d+, 1\)",
    RefusedAtOnce: "the data of this round does not fit",
}


@pytest.mark.parametrize("agents", [1, 2])
@pytest.mark.parametrize("learner", REFUSED, ids=lambda own: own.__name__)
def test_a_learner_that_cannot_learn_is_refused_and_leaves_no_directory(
    tmp_path: Path, learner: Any, agents: int
) -> None:
    settings = {**SMALL, "agents": agents}
    if issubclass(learner, remuda.OnPolicyLearner):
        del settings["batch_size"]
    with pytest.raises(ConfigError, match=REFUSED[learner]):
        remuda.train(GAME, learner=learner, out=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_a_loss_that_is_not_stacked_is_tried_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=REFUSED[Typo]):
        remuda.train(GAME, learner=Typo, out=tmp_path / "run", stack=False, **SMALL)


@pytest.mark.parametrize("learner", [NeedsData, OwnBatches])
def test_a_loss_that_fails_in_the_trial_alone_learns(tmp_path: Path, learner: Any) -> None:
    run = remuda.train(GAME, learner=learner, out=tmp_path / "run", **{**SMALL, "agents": 1})
    assert run.result["updates_per_agent"] > [0]


@pytest.mark.parametrize("engine", ["vectorized", "threads", "actor-learner"])
def test_a_refusal_after_some_learning_ends_the_run_at_once_and_keeps_it(tmp_path: Path, engine: str) -> None:
    settings = {**SMALL, "engine": engine, "n_workers": 1}
    with pytest.raises(ConfigError, match=r"^the data of this round does not fit$"):
        remuda.train(GAME, learner=RefusedLate, out=tmp_path / "run", **settings)
    assert remuda.load(tmp_path / "run").checkpoints()


def test_a_run_whose_updates_were_all_skipped_does_not_end_well(tmp_path: Path) -> None:
    with pytest.raises(LearnerError, match=r"2 agents, 0 the first.*every update was skipped.*RuntimeError: out"):
        remuda.train(GAME, learner=Raises, out=tmp_path / "run", **{**SMALL, "total_episodes": 4})
    run = remuda.load(tmp_path / "run")
    assert run.result["updates_per_agent"] == [0, 0]


def test_the_agents_that_did_not_learn_are_named_where_others_did(tmp_path: Path) -> None:
    settings = {**SMALL, "total_episodes": 4, "learners": {1: Raises}}
    with pytest.raises(LearnerError, match=r"^agent 1 did not learn at all"):
        remuda.train(GAME, learner=Sound, out=tmp_path / "run", **settings)


def test_a_traceback_is_told_once_and_the_error_is_one_line_that_says_how_to_go_on(tmp_path: Path) -> None:
    with pytest.raises(LearnerError, match=r"round 3 in a row.*console\.log has the traceback.*remuda resume") as error:
        remuda.train(GAME, learner=Raises, out=tmp_path / "run", **SMALL)
    assert "\n" not in str(error.value)
    told = (tmp_path / "run" / "console.log").read_text()
    assert told.count("Traceback (most recent call last)") == 1
