"""Independent PPO learners of remuda, RLlib and BenchMARL on one PettingZoo environment: agent-steps/s of training.

The environment is `simple_spread_v3` with discrete actions. Every agent has its own actor and critic, with layers of 64
and 64. An update has 40 episodes of 25 turns, and 4 passes in 4 minibatches. Every run is its own process. Its rate is
measured from the end of the second update to the end of the last, and includes everything in between. RLlib has one
policy per agent; its environments are in the process that learns, or in one process per core. BenchMARL is IPPO without
shared parameters; its environments are in the process that learns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

from benchmarks.harness import Claim, compare
from remuda.core.machine import cores

HERDS = (2, 10)
EPISODES, TURNS = 40, 25
PASSES, MINIBATCHES = 4, 4
LAYERS = [64, 64]
UPDATES, SKIPPED = 8, 2
WORLDS = 8
LR, GAMMA, GAE, CLIP, ENTROPY, VALUE_WEIGHT = 0.0005, 0.99, 0.95, 0.2, 0.01, 0.5
REPEATS = 3
LIMIT_S = 900

Ends = list[float]
"""The time at which each update ended."""


def make_env(agents: int) -> Any:
    """The environment, with parallel actions."""
    from mpe2 import simple_spread_v3

    return simple_spread_v3.parallel_env(N=agents, max_cycles=TURNS, continuous_actions=False)


def wrapped_env(agents: int, num_envs: int, continuous_actions: bool, seed: int, device: Any) -> Callable[[], Any]:
    """The environment for BenchMARL."""
    from torchrl.envs import PettingZooWrapper

    options = {"categorical_actions": True, "device": device, "seed": seed, "return_state": False}
    return lambda: PettingZooWrapper(make_env(agents), **options)


def note_end(ends: Ends, training_td: Any, group: str) -> None:
    """Note that an update has ended. (BenchMARL pickles its callbacks, so this must be at the top level.)"""
    ends.append(time.perf_counter())


def remuda(agents: int, engine: str) -> Ends:
    """Train with remuda."""
    import remuda

    with tempfile.TemporaryDirectory() as folder:
        run = remuda.train(
            "mpe2.simple_spread_v3:parallel_env", N=agents, max_cycles=TURNS, engine=engine, worlds=WORLDS,
            episodes_per_update=EPISODES, total_episodes=EPISODES * UPDATES, learner="ppo", layers=LAYERS,
            passes=PASSES, minibatches=MINIBATCHES, lr=LR, gamma=GAMMA, gae_lambda=GAE, clip=CLIP, entropy=ENTROPY,
            value_weight=VALUE_WEIGHT, device="cpu", pictures=False, evaluate_episodes=1, checkpoint_every=10**9,
            quiet=True, out=f"{folder}/run",
        )  # fmt: skip
        assert set(run.result["updates_per_agent"]) == {UPDATES * PASSES * MINIBATCHES}
        ends: Ends = run.metrics["wall_s"].reshape(UPDATES, agents)[:, 0].tolist()
        return ends


def rllib(agents: int, runners: str) -> Ends:
    """Train with RLlib."""
    import ray
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
    from ray.tune.registry import register_env

    ray.init("local", num_cpus=cores(), include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    register_env("spread", lambda config: ParallelPettingZooEnv(make_env(agents)))
    network = DefaultModelConfig(fcnet_hiddens=LAYERS, fcnet_activation="tanh", vf_share_layers=False)
    config = (
        PPOConfig()
        .environment("spread")
        .env_runners(num_env_runners=int(runners), num_cpus_per_env_runner=1, rollout_fragment_length="auto")
        .multi_agent(
            policies={f"agent_{i}" for i in range(agents)}, policy_mapping_fn=lambda agent, episode, **more: agent
        )
        .rl_module(model_config=network)
        .training(
            train_batch_size_per_learner=EPISODES * TURNS, minibatch_size=EPISODES * TURNS // MINIBATCHES,
            num_epochs=PASSES, lr=LR, gamma=GAMMA, lambda_=GAE, clip_param=CLIP, entropy_coeff=ENTROPY,
            vf_loss_coeff=VALUE_WEIGHT, use_kl_loss=False, grad_clip=0.5,
        )
        .learners(num_learners=0)
    )  # fmt: skip
    algorithm = config.build_algo()
    ends = []
    for _ in range(UPDATES):
        result = algorithm.train()
        ends.append(time.perf_counter())
    steps = result["env_runners"]["num_env_steps_sampled_lifetime"]
    assert EPISODES * TURNS * UPDATES <= steps <= 1.1 * EPISODES * TURNS * UPDATES, steps
    algorithm.stop()
    ray.shutdown()
    return ends


def benchmarl(agents: int) -> Ends:
    """Train with BenchMARL."""
    from benchmarl.algorithms import IppoConfig
    from benchmarl.environments import PettingZooTask
    from benchmarl.experiment import Callback, Experiment, ExperimentConfig
    from benchmarl.models.mlp import MlpConfig
    from torch import nn

    ends: Ends = []
    callback = Callback()
    callback.on_train_end = partial(note_end, ends)
    task = PettingZooTask.SIMPLE_SPREAD.get_task(
        config={"task": "simple_spread_v3", "max_cycles": TURNS, "N": agents, "local_ratio": 0.5}
    )
    task.get_env_fun = partial(wrapped_env, agents)  # BenchMARL imports MPE from PettingZoo, but it has moved to mpe2
    task.has_state = bool  # bool() is False: there is no global state
    experiment = ExperimentConfig.get_from_yaml()
    experiment.share_policy_params, experiment.prefer_continuous_actions = False, False
    experiment.on_policy_collected_frames_per_batch = EPISODES * TURNS
    experiment.on_policy_n_envs_per_worker = WORLDS
    experiment.on_policy_n_minibatch_iters = PASSES
    experiment.on_policy_minibatch_size = EPISODES * TURNS // MINIBATCHES
    experiment.lr, experiment.gamma, experiment.clip_grad_val = LR, GAMMA, 0.5
    experiment.max_n_iters, experiment.max_n_frames = UPDATES, None
    experiment.evaluation = experiment.render = experiment.create_json = False
    experiment.loggers = []
    algorithm = IppoConfig(
        share_param_critic=False, clip_epsilon=CLIP, entropy_coef=ENTROPY, critic_coef=VALUE_WEIGHT,
        loss_critic_type="l2", lmbda=GAE, scale_mapping="biased_softplus_1.0", use_tanh_normal=True,
        minibatch_advantage=False,
    )  # fmt: skip
    network = MlpConfig(num_cells=LAYERS, layer_class=nn.Linear, activation_class=nn.Tanh)
    with tempfile.TemporaryDirectory() as folder:
        experiment.save_folder = folder
        Experiment(
            task=task, algorithm_config=algorithm, model_config=network, critic_model_config=network, seed=0,
            config=experiment, callbacks=[callback],
        ).run()  # fmt: skip
    return ends


RUNS: dict[str, Callable[..., Ends]] = {"remuda": remuda, "rllib": rllib, "benchmarl": benchmarl}


def measure(name: str, agents: int, *words: str) -> float:
    """Agent-steps per second of one run in its own process."""
    command = [sys.executable, "-m", "benchmarks.rivals", name, str(agents), *words]
    environment = {**os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LIMIT_S)
    if done.returncode:
        raise RuntimeError(f"{display_name(name)} failed:\n{done.stderr[-3000:]}")
    ends = json.loads(done.stdout.splitlines()[-1])
    assert len(ends) == UPDATES
    return (UPDATES - SKIPPED) * EPISODES * TURNS * agents / (ends[-1] - ends[SKIPPED - 1])


def display_name(name: str) -> str:
    """The name of a library as it is written."""
    return {"rllib": "RLlib", "benchmarl": "BenchMARL"}.get(name, name)


def main() -> None:
    """Print the tables."""
    variants = {"remuda, executor": ("remuda", "executor"), "remuda, vectorized": ("remuda", "vectorized")}
    if find_spec("ray") and find_spec("tree"):  # RLlib needs the package dm-tree too
        variants |= {"RLlib": ("rllib", "0"), f"RLlib, {cores()} env runners": ("rllib", str(cores()))}
    else:
        print("RLlib is not installed and is left out: pip install 'remuda[bench]'")
    if find_spec("benchmarl"):
        variants["BenchMARL"] = ("benchmarl",)
    else:
        print("BenchMARL is not installed and is left out: pip install 'remuda[bench]'")
    for agents in HERDS:
        compare(
            f"Independent PPO on simple_spread_v3, {agents} agents, {cores()} cores",
            {title: partial(measure, name, agents, *words) for title, (name, *words) in variants.items()},
            [
                Claim(f"executor over {title}", "remuda, executor", title)
                for title in variants
                if not title.startswith("remuda")
            ],
            "agent-steps/s",
            REPEATS,
        )


if __name__ == "__main__":
    print("\n" + json.dumps(RUNS[sys.argv[1]](int(sys.argv[2]), *sys.argv[3:])))
