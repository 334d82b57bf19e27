"""Gymnasium environments stepped and collected from here and by others, side by side.

Everybody has the same number of worlds of the same environment and, when collecting, the same actor: as many numbers,
the same weights, one torch thread. *Stepping* is random actions and nothing else. *Collecting* is asking the actor and
keeping observations, actions, log-probabilities, rewards and ends for a learner, who is not there.

Others step all worlds (PufferLib also: the half that is ready) and ask the actor once for all, in this process. Of
remuda it is the collectors of its engines, as the training loop uses them: `executor` plays whole episodes in worker
processes that have the weights, `sync` has a process per world and asks here, every turn, as the others do;
`vectorized` has no processes. Only true steps count; those in which others only reset a world do not.

Ratios are those of `executor`, which `engine=auto` takes for such environments. Workers: one per core, where a tool can
put several worlds into one; one per world where turns are spent asleep. AsyncVectorEnv and SubprocVecEnv always have a
process per world.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
SETTLE_S = 0.7
REPEATS = 5
KEPT = 128
"""Turns that others keep for a learner."""
FOREVER = 2**40

Work = Callable[[], int]
Choose = Callable[[NDArray[Any]], tuple[NDArray[np.int64], NDArray[np.float32] | None]]


@dataclass(frozen=True)
class Ground:
    """An environment to be measured on."""

    title: str
    factory: Callable[[], gymnasium.Env[Any, Any]]
    workers: int

    @property
    def settings(self) -> dict[str, Any]:
        """The same for remuda."""
        return {"game": f"benchmarks.peer_envs:{self.factory.__name__}", "worlds": WORLDS}


GROUNDS = (
    Ground("CartPole", peer_envs.cartpole, cores()),
    Ground("a millisecond of work a step", peer_envs.working, cores()),
    Ground("10 ms asleep a step, now and then 50 ms", peer_envs.napping, WORLDS),
)


class Actor:
    """The actor of one of our PPO agents in plain torch."""

    def __init__(self, arrays: Mapping[str, NDArray[np.float32]]) -> None:
        self.layers = []
        while f"actor.{(i := len(self.layers))}.weight" in arrays:
            self.layers.append([torch.from_numpy(arrays[f"actor.{i}.{part}"]) for part in ("weight", "bias")])

    @torch.inference_mode()
    def __call__(self, obs: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Sample, and say how likely that was."""
        x = torch.from_numpy(obs)
        for weight, bias in self.layers[:-1]:
            x = torch.nn.functional.linear(x, weight, bias).tanh_()
        probs = torch.nn.functional.linear(x, *self.layers[-1]).softmax(dim=1)
        actions = probs.multinomial(1)
        return actions[:, 0].numpy(), probs.gather(1, actions)[:, 0].log().numpy()


class Kept:
    """What a learner would be given, (turns, worlds, …)."""

    def __init__(self, space: gymnasium.spaces.Box) -> None:
        self.obs = np.zeros((KEPT, WORLDS, *space.shape), space.dtype)
        self.actions = np.zeros((KEPT, WORLDS), np.int64)
        self.log_probs, self.rewards = np.zeros((2, KEPT, WORLDS), np.float32)
        self.ended = np.zeros((KEPT, WORLDS), np.bool_)
        self.turn = 0

    def keep(self, worlds: Any, obs: Any, actions: Any, log_probs: Any) -> None:
        """What was seen and done."""
        self.obs[self.turn, worlds], self.actions[self.turn, worlds] = obs, actions
        self.log_probs[self.turn, worlds] = log_probs

    def close(self, worlds: Any, rewards: Any, ended: Any) -> None:
        """What came of it."""
        self.rewards[self.turn, worlds], self.ended[self.turn, worlds] = rewards, ended
        self.turn = (self.turn + 1) % KEPT


def chooser(ground: Ground, collecting: bool) -> tuple[Choose, Kept | None]:
    """Random actions and nowhere to keep them, or the actor and a place."""
    env = ground.factory()
    space, actions = env.observation_space, env.action_space
    assert isinstance(space, gymnasium.spaces.Box)
    assert isinstance(actions, gymnasium.spaces.Discrete)
    if collecting:
        return Actor(initial_weights(ground)), Kept(space)
    drawn = np.random.default_rng(0).integers(int(actions.n), size=(KEPT, WORLDS))
    turns = count()
    return lambda obs: (drawn[next(turns) % KEPT, : len(obs)], None), None


def initial_weights(ground: Ground) -> Mapping[str, NDArray[np.float32]]:
    """Of our agent before it has learned anything."""
    with collectors_of(ground, "sequential", collecting=True) as (_, policy):
        weights: Mapping[str, NDArray[np.float32]] = policy.weights()[0]
        return weights


@contextmanager
def collectors_of(ground: Ground, engine: str, collecting: bool) -> Iterator[tuple[Any, Any]]:
    """An engine's collectors, started, with weights if they have any; and the policy that has them too."""
    workers = WORLDS if engine == "sync" else ground.workers
    how = {"learner": "ppo" if collecting else "random", "device": "cpu", "n_workers": workers}
    plan = make_plan({**ground.settings, **how, "engine": engine, "total_episodes": FOREVER, "episodes_per_update": 16})
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
    """Our agent's policy, here."""
    policy = bind_policy(context.parts[0], context.plan, context.spec, "cpu").policy
    policy.load(rows[0], 0)
    return policy


@contextmanager
def remuda(engine: str, ground: Ground, collecting: bool) -> Iterator[Work]:
    """Tasks are handed out as long as somebody can play them."""
    with collectors_of(ground, engine, collecting) as (collectors, _):
        episodes, size, out = count(), collectors.task_episodes(), 0

        def work() -> int:
            nonlocal out
            while out + size <= max(size, collectors.capacity()):
                collectors.send(Task(tuple(next(episodes) for _ in range(size))))
                out += size
            delivery = collectors.recv(60.0)
            out -= size
            steps = sum(int(fragment.alive.sum()) for fragment in delivery.fragments)
            delivery.release()
            return steps

        for _ in range(collectors.capacity()):  # by then every worker has started, and played
            work()
        yield work


@contextmanager
def async_vector_env(ground: Ground, collecting: bool) -> Iterator[Work]:
    """Gymnasium's own."""
    choose, kept = chooser(ground, collecting)
    envs = gymnasium.vector.AsyncVectorEnv([ground.factory] * WORLDS)
    obs, _ = envs.reset(seed=0)
    ended = np.zeros(WORLDS, np.bool_)

    def work() -> int:
        nonlocal obs, ended
        actions, log_probs = choose(obs)
        if kept:
            kept.keep(slice(None), obs, actions, log_probs)
        new = WORLDS - int(ended.sum())  # the others are only reset
        obs, rewards, terminated, truncated, _ = envs.step(actions)
        ended = terminated | truncated
        if kept:
            kept.close(slice(None), rewards, ended)
        return new

    try:
        yield work
    finally:
        envs.close()


@contextmanager
def subproc_vec_env(ground: Ground, collecting: bool) -> Iterator[Work]:
    """Stable-Baselines3's."""
    from stable_baselines3.common.vec_env import SubprocVecEnv

    choose, kept = chooser(ground, collecting)
    envs = SubprocVecEnv([ground.factory] * WORLDS)
    obs = envs.reset()

    def work() -> int:
        nonlocal obs
        actions, log_probs = choose(obs)
        if kept:
            kept.keep(slice(None), obs, actions, log_probs)
        obs, rewards, ended, _ = envs.step(actions)
        if kept:
            kept.close(slice(None), rewards, ended)
        return WORLDS

    try:
        yield work
    finally:
        envs.close()


@contextmanager
def pufferlib(batch: int, ground: Ground, collecting: bool) -> Iterator[Work]:
    """PufferLib's processes; `batch` worlds are stepped at a time."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # it leaves a link where it is imported
        import pufferlib.emulation
        import pufferlib.vector

    choose, kept = chooser(ground, collecting)
    make = partial(pufferlib.emulation.GymnasiumPufferEnv, env_creator=ground.factory)
    envs = pufferlib.vector.make(
        make, backend=pufferlib.vector.Multiprocessing, num_envs=WORLDS, num_workers=ground.workers, batch_size=batch,
        zero_copy=batch == WORLDS, overwork=True,
    )  # fmt: skip
    envs.sync_traj = batch == WORLDS
    envs.async_reset(seed=0)
    obs, _, _, _, _, worlds, _ = envs.recv()
    ended = np.ones(WORLDS, np.bool_)

    def work() -> int:
        nonlocal obs, worlds
        actions, log_probs = choose(obs)
        if kept:
            kept.keep(worlds, obs, actions, log_probs)
        envs.send(actions)
        obs, rewards, terminated, truncated, _, worlds, _ = envs.recv()
        new = len(worlds) - int(ended[worlds].sum())  # the others were only reset
        ended[worlds] = terminated | truncated
        if kept:
            kept.close(worlds, rewards, ended[worlds])
        return new

    try:
        yield work
    finally:
        envs.close()


def contenders() -> dict[str, Callable[[Ground, bool], Any]]:
    """Whoever is installed."""
    found: dict[str, Callable[[Ground, bool], Any]] = {
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
            "is built; its vectoriser is plain Python, so the package of its source archive on PYTHONPATH will do"
        )
    return found


def measure(contender: Callable[[Ground, bool], Any], ground: Ground, collecting: bool) -> float:
    """True steps per second of wall time, once it has settled; nobody else's processes are there."""
    with contender(ground, collecting) as work:
        rate(work, SETTLE_S, time.perf_counter)
        return rate(work, SECONDS, time.perf_counter)


def check_actor(ground: Ground) -> None:
    """The others' actor is ours."""
    with collectors_of(ground, "sequential", collecting=True) as (_, policy):
        actor = Actor(policy.weights()[0])
        obs = np.random.default_rng(0).normal(size=(1, 8, 1, *policy.group.obs_shape)).astype(np.float32)
        nothing = np.zeros((8, 1), np.int64)
        choice = policy.act(PolicyInput(obs, nothing, None, nothing.astype(np.uint64), None), 0, 1)
        x = torch.from_numpy(obs[0, :, 0])
        for weight, bias in actor.layers[:-1]:
            x = torch.nn.functional.linear(x, weight, bias).tanh()
        log_probs = torch.nn.functional.linear(x, *actor.layers[-1]).log_softmax(dim=1).numpy()
        theirs = np.take_along_axis(log_probs, choice.actions, axis=1)
        assert np.allclose(theirs, choice.extras["log_prob"], atol=1e-5)


def main() -> None:
    """Print the tables."""
    found = contenders()
    others = [name for name in found if not name.startswith("remuda")]
    with one_thread_each():
        for ground in GROUNDS:
            check_actor(ground)
            for collecting in (False, True):
                compare(
                    f"{'Collecting' if collecting else 'Stepping'}, {ground.title}; {WORLDS} worlds, {cores()} cores",
                    {name: partial(measure, contender, ground, collecting) for name, contender in found.items()},
                    [Claim(f"executor over {name}", "remuda, executor", name) for name in others],
                    "steps/s",
                    REPEATS,
                )
