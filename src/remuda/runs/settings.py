"""Makes a plan of one flat set of settings, which come from files, flags, key=value words and Python."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from difflib import get_close_matches
from typing import Any

from remuda.core.errors import ConfigError, UnknownName
from remuda.core.game import GameSpec, check_options, make_game, reward_options
from remuda.core.options import Options
from remuda.core.plan import ParallelSwitches, Plan, learner_of
from remuda.core.rewards import REWARD
from remuda.core.session import name_object
from remuda.games.registry import SHIPPED, find_game, game_name
from remuda.learners.herd import assign
from remuda.learners.registry import (
    SHIPPED_LEARNERS,
    find_learner,
    is_learner,
    learner_name,
    learner_names,
    learner_options,
)
from remuda.learners.schedule import check_lists
from remuda.runs.callbacks.tables import KEYS
from remuda.runs.peer_settings import name_of_env, refuse_peer_policy, refuse_peer_setting

NESTED = ("options", "learner_options")
PRESETS: dict[str, dict[str, Any]] = {
    # The settings of the study "workflow search" on CAGE 2, corrected: episodes are kept apart, and the value after
    # the last step is the critic's estimate instead of the start of the next episode.
    "workflow_rl": {
        "game": "cage2", "learner": "ppo", "worlds": 100, "episodes_per_update": 100,
        "layers": [64, 64], "activation": "tanh", "passes": 6, "beta2": 0.99, "minibatches": 1, "lr": 0.002,
        "gamma": 0.99, "gae_lambda": 1.0, "clip": 0.2, "entropy": 0.01, "grad_clip": 1000.0,
    },
    # One defender of CAGE 2 for all red agents, under the rules of the published leaderboard; see docs/cage2.md.
    "cage2_record": {
        "game": "cage2", "rules": "leaderboard", "observation": "belief", "actions": "useful", "horizon": "terminal",
        "red": [*["b_line", "meander", "b_line", "meander", "meander"], *["b_line", "meander"] * 2, "sleep"],
        "learner": "ppo", "worlds": 200, "total_episodes": 60_000,
        "layers": [128, 128], "activation": "relu", "passes": 3, "minibatches": 12, "lr": "0.002:0.00002",
        "gamma": 0.99, "gae_lambda": 0.95, "clip": 0.2, "entropy": "0.02:0.001", "grad_clip": 0.5,
    },
}  # fmt: skip

PEER_NAMES: dict[str, tuple[str, ...]] = {
    "activation_fn": ("activation",), "agent": ("red",), "env_name": ("game",), "n_stack": ("frames",),
    "norm_obs": ("normalise_observations",), "normalize": ("normalise_observations",),
    "normalize_advantage": ("normalise_advantages",),
    "actor_lr": ("lr",), "algo": ("learner",), "algorithm": ("learner",), "buffer_size": ("replay_size",),
    "capacity": ("replay_size",), "checkpoint_freq": ("checkpoint_every",), "clip_coef": ("clip",),
    "clip_param": ("clip",), "clip_range": ("clip",), "discount": ("gamma",), "ent_coef": ("entropy",),
    "entropy_coef": ("entropy",), "entropy_coeff": ("entropy",), "env": ("game",), "env_id": ("game",),
    "eps": ("epsilon",), "epsilon_decay": ("epsilon",), "eval_freq": ("evaluate_every",),
    "evaluation_interval": ("evaluate_every",), "exploration": ("epsilon",), "exploration_fraction": ("epsilon",),
    "fcnet_hiddens": ("layers", "layer"), "features_dim": ("features", "layer"),
    "frame_stack": ("frames",), "frames_per_batch": ("episodes_per_update",),
    "hidden": ("layers", "layer"), "hidden_dim": ("layers", "layer"), "hidden_size": ("layers", "layer"),
    "hidden_sizes": ("layers", "layer"),
    "lambda": ("gae_lambda",), "lambda_": ("gae_lambda",), "learning_rate": ("lr",), "max_cycles": ("turns",),
    "max_episode_steps": ("turns",), "max_grad_norm": ("grad_clip", "clip"), "max_n_frames": ("total_episodes",),
    "max_steps": ("turns",), "max_turns": ("turns",), "memory_size": ("replay_size",),
    "n_envs": ("worlds",), "n_episodes": ("total_episodes",),
    "n_epochs": ("passes",), "n_eval_episodes": ("evaluate_episodes",), "n_frames": ("frames",),
    "n_minibatch": ("minibatches",), "n_steps": ("episodes_per_update",), "n_timesteps": ("total_episodes",),
    "net_arch": ("layers", "layer"), "num_agents": ("agents",), "num_env_runners": ("n_workers",),
    "num_envs": ("worlds",), "num_episodes": ("total_episodes",), "num_epochs": ("passes",),
    "num_learners": ("n_learners",), "num_minibatches": ("minibatches",), "num_sgd_iter": ("passes",),
    "num_steps": ("episodes_per_update",), "num_workers": ("n_workers",), "ppo_epochs": ("passes",),
    "replay_buffer_size": ("replay_size",), "rollout_fragment_length": ("episodes_per_update",),
    "rollout_length": ("episodes_per_update",), "save_freq": ("checkpoint_every",),
    "sgd_minibatch_size": ("minibatch_size", "batch_size"), "target_update_interval": ("tau",),
    "total_env_steps": ("total_episodes",), "total_frames": ("total_episodes",), "total_steps": ("total_episodes",),
    "timesteps": ("total_episodes",), "total_timesteps": ("total_episodes",),
    "train_batch_size": ("episodes_per_update",),
    "train_freq": ("train_interval",), "update_epochs": ("passes",), "vf_coef": ("value_weight",),
    "vf_loss_coeff": ("value_weight",),
    "width": ("features", "layer"),
}  # fmt: skip
"""Names that other libraries have for settings, and ours: an error names the one that this game and learner have."""
OF_PPO = ("clip_coef", "clip_param", "clip_range")
"""Names of others for what only PPO has: IQN's `clip` is another quantity, the largest gradient norm."""
SAME_PURPOSE = {"batch_size": ("minibatch_size", "minibatches"), "layer": ("layers",), "layers": ("layer",)}
"""Options of one learner, and what another one has for the same purpose."""
OTHER_UNITS = {
    "checkpoint_every": "counts episodes", "episodes_per_update": "counts whole episodes",
    "epsilon": 'may change over the run, "from:to:share"', "evaluate_every": "counts episodes",
    "layer": "is one number, the width of its layer",
    "tau": "moves the target network a little at every update",
    "total_episodes": "counts episodes, not steps",
}  # fmt: skip
"""What is different in settings that other libraries give in another unit."""


def make_plan(settings: Mapping[str, Any]) -> Plan:
    """A complete plan. A name is looked up in the plan, then in the game, then in the learners.

    A prefix says whose option it is: `game.name`, `iqn.name`.
    """
    given = {name.replace("-", "_"): value for name, value in settings.items() if value is not None}
    refuse_peer_policy(given)
    given = {**_preset(given.pop("preset", None)), **_plainly(given)}
    if "game" not in given:
        raise ConfigError(f"no game given: {name_of_env(given, SHIPPED)}")
    given["game"] = game_name(given["game"])
    entry = find_game(given["game"])
    given = entry.options.resolve_aliases(Plan.resolve_aliases(given))
    plan: dict[str, Any] = {"options": {}, "learner_options": {}}
    for name in NESTED:
        plan[name].update(deepcopy(dict(_mapping(name, given.pop(name, {})))))
    plan["learner_options"] = {
        str(name): dict(_mapping(f"learner_options of {name!r}", own)) for name, own in plan["learner_options"].items()
    }
    own_options = _name_learners(given)
    epochs, interval = given.pop("epochs", None), given.pop("train_interval", None)
    used = _learners_in(given)
    for name, value in given.items():
        _route(name, value, plan, entry.options, used)
    for name, own in own_options.items():
        plan["learner_options"].setdefault(name, {}).update(own)
    _name_objects(plan)
    if epochs is not None:
        _refuse_twice(plan, "epochs", "total_episodes")
        plan["total_episodes"] = _episodes("epochs", epochs, plan)
    if interval is not None:
        plan["episodes_per_update"] = _episodes("train_interval", interval, plan)
    if "learners" in plan:
        plan["learners"] = {str(k): v for k, v in _mapping("learners", plan["learners"]).items()}
    return complete(Plan.read(plan, "the plan"))


def _name_learners(given: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Put a name in place of each learner that was given as a class, or as a mapping with options of its own.

    Returns the options of the latter by their names.
    """
    given |= {"learner": learner_name(given["learner"])} if "learner" in given else {}
    own_options: dict[str, dict[str, Any]] = {}
    if isinstance(given.get("learners"), Mapping):
        names = {}
        for key, own in given["learners"].items():
            options = dict(own) if isinstance(own, Mapping) else {"learner": own}
            name = learner_name(options.pop("learner", given.get("learner", Plan.model_fields["learner"].default)))
            if options:
                if not isinstance(name, str) or not is_learner(name):
                    raise ConfigError(f"learners: {key}: {name} has no options: leave out {', '.join(options)}")
                name = f"{name}@{key}"
                own_options[name] = options
            names[key] = name
        given["learners"] = names
    return own_options


def _name_objects(plan: dict[str, Any]) -> None:
    """Put a name in place of each class among the learners' options: a plan is plain data."""
    for own in plan["learner_options"].values():
        own |= {name: name_object(value) for name, value in own.items() if callable(value)}
    for name, value in plan["options"].items():
        if callable(value):
            raise ConfigError(
                f"{name}={value!r} cannot be written into the run's config: give the game as a function that makes "
                f"the environment with it, lambda: make(…, {name}=…)"
            )


def complete(plan: Plan) -> Plan:
    """The plan with every option of its game and learners filled in and checked."""
    entry = find_game(plan.game)
    options = check_options(entry, plan.options).model_dump()
    transforms = reward_options(entry, plan.options)
    options |= {REWARD: transforms.model_dump()} if transforms else {}
    plan = plan.model_copy(update={"options": options})
    spec = spec_of(plan)
    parts = assign(plan, spec)
    for name in plan.learner_options:
        if name.replace("-", "").isdigit():
            raise ConfigError(
                f"learner_options has agent {name}, and goes by names of learners: give an agent options of its own by "
                f"learners={{{name}: {{learner: {plan.learner}, …}}}}"
            )
        if not is_learner(name):
            raise UnknownName("learner in learner_options", name, learner_names())
    for part in parts:
        if part.learns and plan.lag > find_learner(part.player).max_lag:
            raise ConfigError(f"lag={plan.lag} is more than learner {part.player} tolerates: use lag=0")
    chosen: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(part.player for part in parts if part.learns):
        fields = find_learner(name).options_type().model_fields
        for option in plan.learner_options.get(name, {}).keys() - fields.keys():
            _refuse_peer_name(f"option of learner {name}", option, fields)
        own = learner_options(plan, name)
        check_lists(own, name, spec.agents)
        chosen[name] = own.model_dump()
    _check_metrics(spec, chosen)
    return plan.model_copy(update={"learner_options": chosen})


def _check_metrics(spec: GameSpec, learners: Iterable[str]) -> None:
    """Refuse metrics of a game that cannot be columns of the tables, beside ours and what the learners report."""
    taken = dict.fromkeys((*KEYS, "return", "return_se"), "of every table")
    taken |= {metric: f"of learner {name}" for name in learners for metric in find_learner(name).metrics}
    for group in spec.groups:
        for metric in group.metrics:
            problem = "no name of a column" if not str(metric).isprintable() or not metric else ""
            problem = problem or ("listed twice" if group.metrics.count(metric) > 1 else "")
            problem = problem or (f"also a column {taken[metric]}" if metric in taken else "")
            if problem:
                raise ConfigError(f"metric {metric!r} of group {group.name!r} is {problem}: give it another name")


def spec_of(plan: Plan) -> GameSpec:
    """The shape of the plan's game."""
    return make_game(find_game(plan.game), plan.options, [0]).spec


def _preset(name: Any) -> dict[str, Any]:
    if name is None:
        return {}
    if not isinstance(name, str) or name not in PRESETS:
        raise UnknownName("preset", str(name), PRESETS)
    return PRESETS[name]


def _plainly(given: dict[str, Any]) -> dict[str, Any]:
    """`parallel`, and `learners` as a number, as settings of the plan; a setting given twice is an error."""
    plain = dict(given)
    learners = plain.get("learners")
    if learners == "auto" or (isinstance(learners, int) and not isinstance(learners, bool)):
        _refuse_twice(plain, "learners", "n_learners")
        del plain["learners"]
        plain |= {} if learners == "auto" and plain.get("engine") != "ray" else {"n_learners": learners}
    if "parallel" in plain:
        switches = _mapping("parallel", plain.pop("parallel"))
        own = ParallelSwitches.read(
            {str(name).replace("-", "_"): value for name, value in switches.items()}, "parallel"
        )
        _refuse_twice(plain, "parallel", "engine", "n_workers", "n_learners", "train_interval")
        for name in (
            "parallel_actions",
            "train_interval",
        ):  # they change the result, so they count even if enabled is false
            if name in own.model_fields_set:
                _refuse_twice(plain, "parallel", name)
                plain[name] = getattr(own, name)
        plain |= {"engine": own.engine, "n_workers": own.num_workers if own.enabled else None}
    if "train_interval" in plain:
        _refuse_twice(plain, "train_interval", "episodes_per_update")
    return plain


def _refuse_twice(given: Mapping[str, Any], name: str, *others: str) -> None:
    """Raise if another setting that `name` stands for is given too."""
    for other in others:
        if other in given:
            raise ConfigError(f"{name} and {other} say the same thing twice: give one of them")


def _learners_in(given: Mapping[str, Any]) -> list[str]:
    listed = given.get("learners") or {}
    names = [given.get("learner", Plan.model_fields["learner"].default)]
    names += list(listed.values()) if isinstance(listed, Mapping) else []
    return [name for name in dict.fromkeys(n for n in names if isinstance(n, str)) if is_learner(name)]


def _route(name: str, value: Any, plan: dict[str, Any], game: type[Options], used: list[str]) -> None:
    owner, dot, rest = name.rpartition(".")  # a learner's own name may have dots
    owners = [learner for learner in used if dot and owner in _names_of(learner)]
    if dot and owner == "game":
        plan["options"][rest] = value
    elif dot and (owners or is_learner(owner)):
        for learner in owners or [owner]:
            plan["learner_options"].setdefault(learner, {})[rest] = value
    elif name in Plan.model_fields:
        plan[name] = value
    elif name in game.model_fields or name == REWARD:
        _refuse_ambiguous(name, used)
        plan["options"][name] = value
    elif dot and owner == REWARD:
        plan["options"].setdefault(REWARD, {})[rest] = value
    else:
        takers = [learner for learner in used if name in find_learner(learner).options_type().model_fields]
        if not takers:
            names = _all_names(game, used)
            refuse_peer_setting(name)
            if name not in OF_PPO or "ppo" in used:
                _refuse_peer_name("setting", name, names)
            for learner in ["ppo"] if name in OF_PPO else SHIPPED_LEARNERS:
                for ours in (name, *PEER_NAMES.get(name, ())):
                    if used and ours in SHIPPED_LEARNERS[learner].options_type().model_fields:
                        called = "" if ours == name else f"{name} is called {ours} here, and "
                        raise ConfigError(
                            f"{called}{ours} is an option of learner {learner}, "
                            f"not {f'the {ours} of' if name in OF_PPO else 'of'} {' or '.join(used)}: "
                            f"leave it out, or add learner={learner}"
                        )
            if get_close_matches(name, game.model_fields, n=1, cutoff=0.7):  # rather than one of the plan or a learner
                raise UnknownName("setting", name, game.model_fields)
            raise ConfigError(f"{UnknownName('setting', name, names)} The game has {', '.join(game.model_fields)}.")
        for learner in takers:
            plan["learner_options"].setdefault(learner, {})[name] = value


def _refuse_ambiguous(name: str, used: list[str]) -> None:
    """Raise if an option of the game is an option of a learner, too: whichever got it, some would expect the other."""
    for learner in used:
        if name in find_learner(learner).options_type().model_fields:
            raise ConfigError(
                f"{name} is an option of the game and of learner {learner}: "
                f"say game.{name}=… or {learner_of(learner).rpartition(':')[2]}.{name}=…"
            )


def _refuse_peer_name(kind: str, name: str, names: Collection[str]) -> None:
    """Raise if other libraries, or other learners, have this name for one of `names`: that is what to write."""
    for ours in (*PEER_NAMES.get(name, ()), *SAME_PURPOSE.get(name, ())):
        if ours in names:
            unit = f", which {OTHER_UNITS[ours]}" if ours in OTHER_UNITS else ""
            of = [own for own, shipped in SHIPPED_LEARNERS.items() if name in shipped.options_type().model_fields]
            theirs = f"; {name} is an option of learner {of[0]}" if of else ""
            raise ConfigError(f"unknown {kind} {name!r}: it is called {ours!r} here{unit}{theirs}")


def _names_of(learner: str) -> set[str]:
    """What may stand before the dot: `my.module:DQN@0` is meant by DQN, too."""
    base = learner_of(learner)
    return {learner, base, base.rpartition(":")[2]}


def _all_names(game: type[Options], used: list[str]) -> list[str]:
    names = ["epochs", "preset", "parallel", "train_interval", *Plan.model_fields, *game.model_fields]
    for learner in used:
        names += find_learner(learner).options_type().model_fields
    return names


def _episodes(name: str, epochs: Any, plan: Mapping[str, Any]) -> int:
    """A number of epochs as a number of episodes."""
    worlds = plan.get("worlds", Plan.model_fields["worlds"].default)
    if not isinstance(epochs, int) or not isinstance(worlds, int) or epochs < 1:
        raise ConfigError(f"{name}={epochs!r} should be a whole number of at least 1")
    return epochs * worlds


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        example = ", e.g. learners={0: ppo}" if name == "learners" else ""
        raise ConfigError(f"{name}={value!r} should be a mapping of names to values{example}")
    return value
