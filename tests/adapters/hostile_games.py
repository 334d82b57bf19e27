"""Environments that break what they promise, each in its own way."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from pettingzoo import ParallelEnv


class Plain(gymnasium.Env[Any, int]):
    """Three turns of nothing; the others differ from it in one thing."""

    observation_space = spaces.Box(0, 1, (3,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin."""
        super().reset(seed=seed)
        self.turn = 0
        return self.observe(), {}

    def observe(self) -> Any:
        """Nothing to see."""
        return np.zeros(3, np.float32)

    def step(self, action: int) -> Any:
        """One turn."""
        self.turn += 1
        return self.observe(), 1.0, self.turn >= 3, False, {}


class ResetsToNothing(Plain):
    """`reset` returns None."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Nothing."""
        return None


class KnowsNoSpace(Plain):
    """Asking for its space raises."""

    @property
    def observation_space(self) -> Any:  # type: ignore[override]
        """No space."""
        raise RuntimeError("spaces are not known yet")


class UnreadableError(Plain):
    """Raises an error whose message cannot be read."""

    def step(self, action: int) -> Any:
        """Raise."""

        class Unreadable(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no text")

        raise Unreadable


class EndlessError(Plain):
    """Raises an error with a message of ten million characters."""

    def step(self, action: int) -> Any:
        """Raise."""
        raise ValueError("x" * 10_000_000)


class WrongShape(Plain):
    """Observes more than its space has."""

    def observe(self) -> Any:
        """Too much."""
        return np.zeros((3, 3), np.float32)


class StartsPrograms(Plain):
    """Starts a program in every episode and terminates it, as wrappers of simulators do."""

    def step(self, action: int) -> Any:
        """Start, terminate, and wait for the end."""
        program = subprocess.Popen(["sleep", "600"])
        program.terminate()
        try:
            ended = program.wait(30)
        finally:
            program.kill()
            program.wait()
        assert ended == -15
        return super().step(action)


class Two(ParallelEnv[Any, Any, int]):
    """Two agents, three turns."""

    metadata: dict[str, Any] = {"name": "two"}  # noqa: RUF012
    possible_agents: list[Any] = ["a", "b"]  # noqa: RUF012

    def __init__(self) -> None:
        self.agents: list[Any] = []

    def observation_space(self, agent: Any) -> Any:
        """Two numbers."""
        return spaces.Box(0, 1, (2,), np.float32)

    def action_space(self, agent: Any) -> Any:
        """Two choices."""
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        """Begin."""
        self.agents, self.turn = [*self.possible_agents], 0
        return {agent: np.zeros(2, np.float32) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        """One turn."""
        self.turn += 1
        over = self.turn >= 3
        agents = self.agents
        self.agents = [] if over else agents
        every = (dict.fromkeys(agents, value) for value in (1.0, over, False))
        return {agent: np.zeros(2, np.float32) for agent in agents}, *every, {agent: {} for agent in agents}


class Stranger(Two):
    """Somebody comes whom nobody announced."""

    def step(self, actions: Any) -> Any:
        """One turn."""
        found = super().step(actions)
        self.agents = [*self.agents, "zorro"]
        return found


class Unseen(Two):
    """An agent is there and is shown nothing."""

    def step(self, actions: Any) -> Any:
        """One turn."""
        obs, *rest = super().step(actions)
        obs.pop("b")
        return obs, *rest


class ShowsStrangers(Two):
    """Observes for somebody whom nobody announced."""

    def step(self, actions: Any) -> Any:
        """One turn."""
        obs, *rest = super().step(actions)
        return {**obs, "zorro": np.zeros(2, np.float32)}, *rest


class TellsNoEnd(Two):
    """Returns no terminations."""

    def step(self, actions: Any) -> Any:
        """One turn."""
        obs, rewards, _, *rest = super().step(actions)
        return obs, rewards, {}, *rest


class PaysOne(Two):
    """Pays only one of its agents."""

    def step(self, actions: Any) -> Any:
        """One turn."""
        obs, _, *rest = super().step(actions)
        return obs, {"a": 1.0}, *rest


class PaysText(Two):
    """Pays in words."""

    def step(self, actions: Any) -> Any:
        """One turn."""
        obs, _, *rest = super().step(actions)
        return obs, {"a": 1.0, "b": "1"}, *rest


class PaysTextAlone(Plain):
    """Pays in words."""

    def step(self, action: int) -> Any:
        """One turn."""
        obs, _, *rest = super().step(action)
        return obs, "1", *rest


class Unseedable(Plain):
    """`reset` takes nothing."""

    def reset(self) -> Any:  # type: ignore[override]
        """Begin."""
        return super().reset()


class UnseedableTwo(Two):
    """`reset` takes nothing."""

    def reset(self) -> Any:  # type: ignore[override]
        """Begin."""
        return super().reset()


class NoSpace(gymnasium.Env[Any, int]):
    """Has no spaces."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin."""
        return 0, {}


class NoSpaceTwo(ParallelEnv[Any, Any, int]):
    """Has no spaces."""

    possible_agents: list[Any] = ["a"]  # noqa: RUF012

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        """Begin."""
        self.agents = ["a"]
        return {"a": 0}, {"a": {}}


class SpaceForAll(Two):
    """Has a space where a method is wanted."""

    action_space = spaces.Discrete(2)  # type: ignore[assignment]


class Buggy(Plain):
    """Raises in its third turn."""

    def step(self, action: int) -> Any:
        """Raise what a bug would raise."""
        found = super().step(action)
        if self.turn == 3:
            len(3)  # type: ignore[arg-type]
        return found


MADE = Plain()
LOCAL = type("Local", (Plain,), {})()


class AllAway(Two):
    """Everybody is away after turn `away`, and would be back in the next one."""

    def __init__(self, away: int = 1) -> None:
        super().__init__()
        self.away = away

    def step(self, actions: Any) -> Any:
        """One turn."""
        obs, rewards, *flags, infos = super().step(actions)
        self.agents = [] if self.turn > self.away else [*self.possible_agents]
        return obs, rewards, *(dict.fromkeys(own, False) for own in flags), infos


class TakesTurnsAway(Two):
    """One agent after the other is away for a turn, until the flags of both are set."""

    def step(self, actions: Any) -> Any:
        """One turn."""
        self.agents = [*self.possible_agents]
        found = super().step(actions)
        if self.agents:
            self.agents = [self.possible_agents[self.turn % 2]]
        return found


class Twins(Two):
    """Two agents of one name."""

    possible_agents: list[Any] = ["a", "a"]  # noqa: RUF012


class Numbered(Two):
    """Agents whose names are no texts."""

    possible_agents: list[Any] = [0, (1, 2)]  # noqa: RUF012


class SetsTorch(Plain):
    """Chooses other settings of torch, as simulators with networks of their own do."""

    def step(self, action: int) -> Any:
        """Set and step."""
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.set_num_threads(2)
        return super().step(action)


class OfTheDefaultType(torch.nn.Module):
    """A body that makes a tensor of torch's default type in each pass."""

    def __init__(self, obs_shape: tuple[int, ...], frames: int, width: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(width))

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """One layer."""
        features: torch.Tensor = self.layers(frames + torch.zeros(frames.shape))
        return features


class FreezesTime(Plain):
    """Replaces the clocks of its process, as packages that freeze time for tests do."""

    def step(self, action: int) -> Any:
        """Freeze and step."""
        time.perf_counter = time.monotonic = lambda: 0.0  # type: ignore[assignment]
        return super().step(action)


class ClosesStreams(Plain):
    """Closes the output of its process."""

    def step(self, action: int) -> Any:
        """Close and step."""
        sys.stdout.close()
        sys.stderr.close()
        return super().step(action)


class Endless(Plain):
    """Shows one of very many states."""

    observation_space = spaces.Discrete(10**12)  # type: ignore[assignment]
