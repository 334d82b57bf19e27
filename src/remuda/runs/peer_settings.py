"""Settings of other libraries that have no counterpart of another name here: what to write instead."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from remuda.core.errors import ConfigError

_NETWORK = "the network is made of settings of their own, body=cnn, layers=[64, 64], activation=relu (docs/networks.md)"
_ARGUMENTS = "arguments of the environment are settings like any other, NAME=VALUE"
_SHOWN = "the console always shows the progress; from Python quiet=True turns that off"
INSTEAD: dict[str, str] = {
    "env_config": _ARGUMENTS, "env_kwargs": _ARGUMENTS, "model_config": _NETWORK, "policy_kwargs": _NETWORK,
    "progress_bar": _SHOWN, "verbose": _SHOWN,
    "callback": "callbacks=[…] takes them (docs/python.md)",
    "framework": "networks are torch's",
    "load": "`remuda resume RUN` continues a run, and warm_start=RUN starts with its weights",
    "log_dir": "out=DIR is the run directory, which has all logs",
    "log_interval": "every round is logged (metrics.csv, TensorBoard)",
    "save_path": "out=DIR is the run directory, which has all checkpoints",
    "seeds": "one run has one seed; for several write `remuda train GAME --seeds N`, or remuda.study(game, seeds=N)",
    "target_kl": "ppo has no such stop; clip bounds its steps",
    "tensorboard_log": "TensorBoard's files are always written, `tensorboard --logdir RUN` shows them",
    "use_sde": "ppo has spread=shared or spread=predicted for Box actions",
    "vec_env_cls": "the engine says where worlds are played, engine=vectorized or engine=executor",
}  # fmt: skip

POLICIES = {
    "ActorCriticPolicy": "layers=[64, 64]", "CnnLstmPolicy": "a body of your own", "CnnPolicy": "body=cnn",
    "MlpLstmPolicy": "body=lstm", "MlpPolicy": "layers=[64, 64]", "MultiInputPolicy": "layers=[64, 64]",
}  # fmt: skip
"""Networks of Stable-Baselines3, and the settings that make them here."""


def refuse_peer_setting(name: str) -> None:
    """Raise if another library has a setting of this name, and say what to write instead."""
    if name in INSTEAD:
        raise ConfigError(f"there is no setting {name!r} here: {INSTEAD[name]}")


def refuse_peer_policy(given: Mapping[str, Any]) -> None:
    """Raise if `policy`, another name of the learner here, names a network as in Stable-Baselines3."""
    policy = given.get("policy")
    if isinstance(policy, str) and policy in POLICIES:
        raise ConfigError(
            f"there is no policy={policy} here: say learner=ppo, and {POLICIES[policy]} for its network "
            "(docs/networks.md)"
        )


def name_of_env(given: Mapping[str, Any], shipped: Collection[str]) -> str:
    """What to type for a plan without a game: the one that `env` or the like names, as another library calls it."""
    for name in ("env", "env_id", "env_name"):
        if isinstance(given.get(name), str):
            env = given[name]
            ours = env if ":" in env or env in shipped else f"gymnasium:{env}"
            return f"game={ours} in place of {name}={env}"
    return "name one, e.g. game=treasurehunt or game=gymnasium:CartPole-v1"
