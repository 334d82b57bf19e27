"""Stepping of, and collecting from, Gymnasium environments: remuda compared with other libraries.

Every library has the same number of worlds of the same environment and, when collecting, the same actor: the same
weights and one torch thread. *Stepping* plays random actions. *Collecting* asks the actor and stores observations,
actions, log-probabilities, rewards and ends for a learner, which is not part of the measurement.

The other libraries step all worlds (PufferLib also: the half that is ready) and ask the actor once for all, in this
process. remuda is measured by the collectors of its engines, as the training loop uses them: `executor` plays whole
episodes in worker processes that have the weights; `sync` has a process per world and asks the actor here every turn,
as the others do; `vectorized` has no processes. Steps in which a library only resets a world are not counted.

Ratios are those of `executor`, which `engine=auto` chooses for such environments. There is one worker per core where a
library can put several worlds into a worker, and one per world if turns sleep. AsyncVectorEnv and SubprocVecEnv always
have a process per world.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import peer_envs
from benchmarks.harness import Claim, compare, rate
from remuda.core.machine import cores
from remuda.core.policy import PolicyInput
from remuda.core.task import Task
from remuda.core.threads import one_thread_each
from remuda.engines.collectors.warm_up import warm_up_request
from remuda.engines.context import EngineContext
from remuda.engines.table import find_engine
from remuda.learners.herd import assign, bind_policy
from remuda.runs.settings import make_plan, spec_of
from remuda.transport.heartbeat import Limits
from remuda.transport.worker_pool import WorkerPool

WORLDS = 16
SECONDS = 2.0
WARM_UP_S = 0.7
REPEATS = 5
BUFFER_TURNS = 128
"""Turns that the other libraries store for a learner."""
UNLIMITED = 2**40

Work = Callable[[], int]
Choose = Callable[[NDArray[Any]], tuple[NDArray[np.int64], NDArray[np.float32] | None]]


@dataclass(frozen=True)
class BenchmarkEnv:
    """An environment, and with how many workers it is measured."""

    title: str
    factory: Callable[[], gymnasium.Env[Any, Any]]
    workers: int

    @property
    def settings(self) -> dict[str, Any]:
        """The environment as settings of remuda."""
        return {"game": f"benchmarks.peer_envs:{self.factory.__name__}", "worlds": WORLDS}


ENVS = (
    BenchmarkEnv("CartPole", peer_envs.cartpole, cores()),
    BenchmarkEnv("a millisecond of work a step", peer_envs.working, cores()),
    BenchmarkEnv("10 ms asleep a step, now and then 50 ms", peer_envs.sleeping, WORLDS),
)


class Actor:
    """The actor of one of our PPO agents in plain torch."""

    def __init__(self, arrays: Mapping[str, NDArray[np.float32]]) -> None:
        self.layers = []
        while f"actor.{(i := len(self.layers))}.weight" in arrays:
            self.layers.append([torch.from_numpy(arrays[f"actor.{i}.{part}"]) for part in ("weight", "bias")])

    @torch.inference_mode()
    def __call__(self, obs: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Sample actions; also returns their log-probabilities."""
        x = torch.from_numpy(obs)
        for weight, bias in self.layers[:-1]:
            x = torch.nn.functional.linear(x, weight, bias).tanh_()
        probs = torch.nn.functional.linear(x, *self.layers[-1]).softmax(dim=1)
        actions = probs.multinomial(1)
        return actions[:, 0].numpy(), probs.gather(1, actions)[:, 0].log().numpy()


class RolloutBuffer:
    """What a learner would be given, arrays (turns, worlds, …)."""

    def __init__(self, space: gymnasium.spaces.Box) -> None:
        self.obs = np.zeros((BUFFER_TURNS, WORLDS, *space.shape), space.dtype)
        self.actions = np.zeros((BUFFER_TURNS, WORLDS), np.int64)
        self.log_probs, self.rewards = np.zeros((2, BUFFER_TURNS, WORLDS), np.float32)
        self.ended = np.zeros((BUFFER_TURNS, WORLDS), np.bool_)
        self.turn = 0

    def store_action(self, worlds: Any, obs: Any, actions: Any, log_probs: Any) -> None:
        """Store observations and actions of a turn."""
        self.obs[self.turn, worlds], self.actions[self.turn, worlds] = obs, actions
        self.log_probs[self.turn, worlds] = log_probs

    def store_result(self, worlds: Any, rewards: Any, ended: Any) -> None:
        """Store rewards and ends, and go to the next turn."""
        self.rewards[self.turn, worlds], self.ended[self.turn, worlds] = rewards, ended
        self.turn = (self.turn + 1) % BUFFER_TURNS


def chooser(env: BenchmarkEnv, collecting: bool) -> tuple[Choose, RolloutBuffer | None]:
    """For stepping, random actions; for collecting, the actor and a buffer."""
    made = env.factory()
    space, actions = made.observation_space, made.action_space
    assert isinstance(space, gymnasium.spaces.Box)
    assert isinstance(actions, gymnasium.spaces.Discrete)
    if collecting:
        return Actor(initial_weights(env)), RolloutBuffer(space)
    drawn = np.random.default_rng(0).integers(int(actions.n), size=(BUFFER_TURNS, WORLDS))
    turns = count()
    return lambda obs: (drawn[next(turns) % BUFFER_TURNS, : len(obs)], None), None


def initial_weights(env: BenchmarkEnv) -> Mapping[str, NDArray[np.float32]]:
    """The weights of our agent before training."""
    with collectors_of(env, "sequential", collecting=True) as (_, policy):
        weights: Mapping[str, NDArray[np.float32]] = policy.weights()[0]
        return weights


@contextmanager
def collectors_of(env: BenchmarkEnv, engine: str, collecting: bool) -> Iterator[tuple[Any, Any]]:
    """The started collectors of an engine and, for collecting, the policy with the same weights."""
    workers = WORLDS if engine == "sync" else env.workers
    settings = {"learner": "ppo" if collecting else "random", "device": "cpu", "n_workers": workers}
    plan = make_plan(
        {**env.settings, **settings, "engine": engine, "total_episodes": UNLIMITED, "episodes_per_update": 16}
    )
    spec = spec_of(plan)
    worker_pool = WorkerPool(lambda: None, limits=Limits.of(plan), warm_up_request=warm_up_request(plan, spec))
    with tempfile.TemporaryDirectory() as folder:
        context = EngineContext(plan, spec, assign(plan, spec), "cpu", lambda: None, worker_pool, Path(folder))
        collectors, trainers = find_engine(engine).build(context)
        policy = make_policy(context, trainers.rows()) if collecting else None
        try:
            collectors.start()
            collectors.publish(trainers.rows(), 0)
            yield collectors, policy
        finally:
            collectors.close()
            trainers.close()


def make_policy(context: EngineContext, rows: Any) -> Any:
    """Our agent's policy, in this process."""
    policy = bind_policy(context.parts[0], context.plan, context.spec, "cpu").policy
    policy.load(rows[0], 0)
    return policy


@contextmanager
def remuda(engine: str, env: BenchmarkEnv, collecting: bool) -> Iterator[Work]:
    """remuda's collectors; tasks are sent as long as the collectors have capacity."""
    with collectors_of(env, engine, collecting) as (collectors, _):
        episodes, size, in_progress = count(), collectors.task_episodes(), 0

        def work() -> int:
            nonlocal in_progress
            while in_progress + size <= max(size, collectors.capacity()):
                collectors.send(Task(tuple(next(episodes) for _ in range(size))))
                in_progress += size
            delivery = collectors.recv(60.0)
            in_progress -= size
            steps = sum(int(fragment.alive.sum()) for fragment in delivery.fragments)
            delivery.release()
            return steps

        for _ in range(collectors.capacity()):  # afterwards every worker has started and played
            work()
        yield work


@contextmanager
def async_vector_env(env: BenchmarkEnv, collecting: bool) -> Iterator[Work]:
    """Gymnasium's AsyncVectorEnv."""
    choose, buffer = chooser(env, collecting)
    envs = gymnasium.vector.AsyncVectorEnv([env.factory] * WORLDS)
    obs, _ = envs.reset(seed=0)
    ended = np.zeros(WORLDS, np.bool_)

    def work() -> int:
        nonlocal obs, ended
        actions, log_probs = choose(obs)
        if buffer:
            buffer.store_action(slice(None), obs, actions, log_probs)
        new = WORLDS - int(ended.sum())  # the others are only reset
        obs, rewards, terminated, truncated, _ = envs.step(actions)
        ended = terminated | truncated
        if buffer:
            buffer.store_result(slice(None), rewards, ended)
        return new

    with closing(envs):
        yield work


@contextmanager
def subproc_vec_env(env: BenchmarkEnv, collecting: bool) -> Iterator[Work]:
    """Stable-Baselines3's SubprocVecEnv."""
    from stable_baselines3.common.vec_env import SubprocVecEnv

    choose, buffer = chooser(env, collecting)
    envs = SubprocVecEnv([env.factory] * WORLDS)
    obs = envs.reset()

    def work() -> int:
        nonlocal obs
        actions, log_probs = choose(obs)
        if buffer:
            buffer.store_action(slice(None), obs, actions, log_probs)
        obs, rewards, ended, _ = envs.step(actions)
        if buffer:
            buffer.store_result(slice(None), rewards, ended)
        return WORLDS

    with closing(envs):
        yield work


@contextmanager
def pufferlib(batch: int, env: BenchmarkEnv, collecting: bool) -> Iterator[Work]:
    """PufferLib's processes; `batch` worlds are stepped at a time."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
    ):  # it creates a link in the directory where it is imported
        import pufferlib.emulation
        import pufferlib.vector

    choose, buffer = chooser(env, collecting)
    make = partial(pufferlib.emulation.GymnasiumPufferEnv, env_creator=env.factory)
    envs = pufferlib.vector.make(
        make, backend=pufferlib.vector.Multiprocessing, num_envs=WORLDS, num_workers=env.workers, batch_size=batch,
        zero_copy=batch == WORLDS, overwork=True,
    )  # fmt: skip
    envs.sync_traj = batch == WORLDS
    envs.async_reset(seed=0)
    obs, _, _, _, _, worlds, _ = envs.recv()
    ended = np.ones(WORLDS, np.bool_)

    def work() -> int:
        nonlocal obs, worlds
        actions, log_probs = choose(obs)
        if buffer:
            buffer.store_action(worlds, obs, actions, log_probs)
        envs.send(actions)
        obs, rewards, terminated, truncated, _, worlds, _ = envs.recv()
        new = len(worlds) - int(ended[worlds].sum())  # the others were only reset
        ended[worlds] = terminated | truncated
        if buffer:
            buffer.store_result(worlds, rewards, ended[worlds])
        return new

    with closing(envs):
        yield work


def libraries() -> dict[str, Callable[[BenchmarkEnv, bool], Any]]:
    """The libraries that are installed."""
    found: dict[str, Callable[[BenchmarkEnv, bool], Any]] = {
        f"remuda, {engine}": partial(remuda, engine) for engine in ("executor", "sync", "vectorized")
    }
    found["AsyncVectorEnv"] = async_vector_env
    if find_spec("stable_baselines3"):
        found["SubprocVecEnv"] = subproc_vec_env
    else:
        print("Stable-Baselines3 is not installed and is left out: pip install 'remuda[bench]'")
    if find_spec("pufferlib"):
        found["PufferLib"] = partial(pufferlib, WORLDS)
        found["PufferLib, first half"] = partial(pufferlib, WORLDS // 2)
    else:
        print(
            "PufferLib is not installed and is left out: 3.0 wants an older NumPy and Gymnasium and downloads when it "
            "is built; its vectoriser is plain Python: put the package from its source archive on PYTHONPATH"
        )
    return found


def measure(library: Callable[[BenchmarkEnv, bool], Any], env: BenchmarkEnv, collecting: bool) -> float:
    """Steps per second of wall time, after a warm-up; no processes of other libraries are running."""
    with library(env, collecting) as work:
        rate(work, WARM_UP_S, time.perf_counter)
        return rate(work, SECONDS, time.perf_counter)


def check_actor(env: BenchmarkEnv) -> None:
    """Check that the other libraries' actor gives the same probabilities as our policy."""
    with collectors_of(env, "sequential", collecting=True) as (_, policy):
        actor = Actor(policy.weights()[0])
        obs = np.random.default_rng(0).normal(size=(1, 8, 1, *policy.group.obs_shape)).astype(np.float32)
        nothing = np.zeros((8, 1), np.int64)
        output = policy.act(PolicyInput(obs, nothing, None, nothing.astype(np.uint64), None), 0, 1)
        x = torch.from_numpy(obs[0, :, 0])
        for weight, bias in actor.layers[:-1]:
            x = torch.nn.functional.linear(x, weight, bias).tanh()
        log_probs = torch.nn.functional.linear(x, *actor.layers[-1]).log_softmax(dim=1).numpy()
        theirs = np.take_along_axis(log_probs, output.actions, axis=1)
        assert np.allclose(theirs, output.extras["log_prob"], atol=1e-5)


def main() -> None:
    """Print the tables."""
    found = libraries()
    others = [name for name in found if not name.startswith("remuda")]
    with one_thread_each():
        for env in ENVS:
            check_actor(env)
            for collecting in (False, True):
                compare(
                    f"{'Collecting' if collecting else 'Stepping'}, {env.title}; {WORLDS} worlds, {cores()} cores",
                    {name: partial(measure, library, env, collecting) for name, library in found.items()},
                    [Claim(f"executor over {name}", "remuda, executor", name) for name in others],
                    "steps/s",
                    REPEATS,
                )
