"""One agent of a run, for loops of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from remuda.core import rng
from remuda.core.errors import ConfigError, GameError, RunError
from remuda.core.policy import Policy, PolicyInput
from remuda.core.rng import Stream
from remuda.learners.herd import bind_policy
from remuda.runs.frozen import load_frozen

if TYPE_CHECKING:
    from remuda.runs.directory import RunDirectory


class TrainedAgent:
    """Chooses the actions of one agent, greedily, as `remuda.evaluate` does.

    It keeps the last observations itself, as many as its network looks at. Call `reset` when an episode begins, and
    when the agent comes back to life.
    """

    def __init__(self, name: str, policy: Policy, row: int, seed: np.uint64) -> None:
        """`row` is the agent's place among those of `policy`; `seed` decides what a random player does."""
        self.name = name
        self.observation_shape = policy.group.obs_shape
        self.observation_dtype: np.dtype[Any] = np.dtype(policy.group.obs_dtype)
        self.actions = policy.group.actions
        self._policy, self._row, self._seed = policy, row, seed
        self._frames = np.zeros((policy.frames, *self.observation_shape), self.observation_dtype)
        self._episode, self._turn = -1, 0
        self.reset()

    @classmethod
    def of(cls, run: RunDirectory, number: int, checkpoint: str | None = None) -> TrainedAgent:
        """Agent `number` of a run, whoever plays it: a learner, a scripted player or a frozen agent."""
        if not 0 <= number < run.spec.agents:
            raise RunError(f"{run.path} has no agent {number}: it has agents 0 to {run.spec.agents - 1}")
        part = next(p for p in run.parts if p.herd_first <= number < p.herd_first + p.agents)
        seed = rng.key(run.plan.seed, Stream.OUTSIDE, number)
        name = f"agent {number} of {run.path} ({part.player})"
        if part.learns:
            return cls(name, run.policy([number], run.spec.groups[part.group], "cpu", checkpoint), 0, seed)
        (part,) = load_frozen([part], run.spec, run.trust)
        return cls(name, bind_policy(part, run.plan, run.spec, "cpu").policy, number - part.herd_first, seed)

    def __repr__(self) -> str:
        space = self._policy.group.action_space
        out = f"one of {self.actions} actions" if space is None else str(space)
        return f"{self.name}: {self._wanted()} in, {out} out"

    def reset(self) -> None:
        """Forget the observations so far: an episode begins."""
        self._frames[:] = 0
        self.state: NDArray[np.float32] = np.zeros(self._policy.memory_size, np.float32)
        self._episode, self._turn = self._episode + 1, 0

    def act(self, obs: Any, state: NDArray[np.float32] | None = None, mask: Any = None) -> Any:
        """The action for this observation, which is remembered with the last ones: a number, or an array.

        `mask`, (actions,), is true where an action is allowed; only games that forbid actions have one. An agent with a
        memory keeps its recurrent state itself: it is in `state`, and `act` continues from another one if it is given.
        """
        if state is not None:
            self._take_state(state)
        if mask is None and isinstance(obs, Mapping):
            mask = obs.get("action_mask")
        observation, allowed = self._observation(obs), self._mask(mask)
        self._frames[:-1] = self._frames[1:]
        self._frames[-1] = observation
        inputs = PolicyInput(
            obs=self._frames[:, None, None],  # (frames, 1 world, 1 agent, *obs)
            ages=np.full((1, 1), self._turn),
            mask=allowed,
            keys=rng.keys(rng.keys(np.full((1, 1), self._seed), self._episode), self._turn),
            exploration=0.0,
            memory=self.state[None, None] if self._policy.memory_size else None,
        )
        self._turn += 1
        output = self._policy.act(inputs, self._row, self._row + 1)
        if output.memory is not None:
            self.state = output.memory[0, 0].copy()
        action = output.actions[0, 0]
        return int(action) if action.ndim == 0 else action

    def _take_state(self, state: Any) -> None:
        given = np.asarray(state)
        if not self._policy.memory_size:
            raise ConfigError(f"{self.name} has no recurrent state: leave state out")
        if given.shape != self.state.shape or given.dtype != np.float32:
            raise ConfigError(
                f"the state is {given.dtype} of shape {given.shape}: {self.name} takes float32 of {self.state.shape}"
            )
        self.state = given

    def _observation(self, obs: Any) -> NDArray[Any]:
        """The observation as an array; flattened as in training where the environment shows parts."""
        space = self._policy.group.raw_space
        if space is not None and not (isinstance(obs, np.ndarray) and obs.shape == self.observation_shape):
            from remuda.adapters.inbound.spaces import FlatSpace  # imports gymnasium

            try:
                array = FlatSpace(space, self.name).as_array(obs)
            except (GameError, AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                raise ConfigError(f"the observation is none of {space}, which {self.name} takes: {error}") from None
            if array.dtype.kind == "f" and np.isnan(array).any():
                raise ConfigError(f"the observation has values outside of {space}, which {self.name} takes")
            return array
        given = np.asarray(obs)
        if given.dtype.kind in "biuf" and given.shape == self.observation_shape:
            given = self._in_own_type(given)
        if given.shape != self.observation_shape or given.dtype != self.observation_dtype:
            raise ConfigError(
                f"the observation is {given.dtype} of shape {given.shape}: {self.name} takes {self._wanted()}"
            )
        return given

    def _in_own_type(self, given: NDArray[Any]) -> NDArray[Any]:
        """The array in the type of the observations if no value changes but by rounding to float32, else as it is."""
        own = given.astype(self.observation_dtype)
        fits = own.dtype.kind == "f" or (given.dtype.kind != "f" and np.array_equal(own, given))
        return own if fits else given

    def _mask(self, mask: Any) -> NDArray[np.bool_] | None:
        """The mask as a policy takes it, (1 world, 1 agent, actions)."""
        if not self._policy.group.masked:
            if mask is not None:
                raise ConfigError(f"the game of {self.name} forbids no actions: leave mask out")
            return None
        given = np.asarray(mask)
        if given.shape != (self.actions,) or given.dtype.kind not in "biu" or not given.any():
            raise ConfigError(
                f"the mask is {given.dtype} of shape {given.shape}: {self.name} plays a game that forbids actions and "
                f"takes bool of shape {(self.actions,)}, true where an action is allowed, at least once"
            )
        return given.astype(np.bool_)[None, None]

    def _wanted(self) -> str:
        return f"{self.observation_dtype} of shape {self.observation_shape}"
