"""The plan: all settings of a run, validated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from remuda.core.options import Options

EPISODES_PER_EVALUATED = 30
"""Training episodes for each evaluation episode, by default."""
FROZEN = "frozen"
"""Prefix of a player that is a trained agent of another run: frozen:RUN/agent."""
MAX_S = 1e9
"""Longest limit in seconds, 31 years: the system's clocks refuse to wait much longer."""
UpdateRate = Annotated[float, Field(gt=0, le=1000)]


def learner_of(player: str) -> str:
    """The learner without the part of a name that tells its options apart: `ppo` of `ppo@0`."""
    return player if player.startswith(f"{FROZEN}:") else player.partition("@")[0]


class Plan(Options):
    """What is computed, and where. Settings down to `precision` decide the result, the rest only speed and files."""

    aliases: ClassVar[Mapping[str, str]] = {"policy": "learner"}

    game: str = Field(description="a shipped game, or module:entry of your own; from Python also the entry or a class")
    options: dict[str, Any] = Field({}, description="options of the game")
    worlds: int = Field(16, ge=1, description="copies of the game played side by side")
    total_episodes: int = Field(4000, ge=1, description="episodes to train for, over all worlds")
    seed: int = Field(0, ge=0, lt=2**63, description="decides every random number of the run")
    learner: str = Field(
        "iqn",
        description="the learner or player of all agents that `learners` does not list: a name, or module:Class of "
        "your own; from Python also the class",
    )
    learners: dict[str, str] = Field(
        {},
        description="per agent or range of agents, e.g. {0-3: iqn, 4: random}; with options of their own: "
        "{0: {learner: ppo, body: gru}, 1-2: ppo}",
    )
    learner_options: dict[str, dict[str, Any]] = Field({}, description="options of each learner, by its name")
    episodes_per_update: int | None = Field(None, ge=1, description="episodes in a round; default: worlds")
    updates_per_episode: UpdateRate | list[UpdateRate] = Field(
        1.0, description="gradient steps per agent and episode, or a list with one number per agent; ppo: see passes"
    )
    lag: int = Field(
        0, ge=0, le=1, description="policy lag by rounds; 1: collect the next round while the last one trains"
    )
    parallel_actions: bool = Field(True, description="all agents observe at the start of the turn")
    warm_start: str | None = Field(
        None, description="a run whose last weights, optimisers and statistics these learners start with"
    )
    precision: Literal["fp32", "bf16"] = Field("fp32", description="of the matrix products")

    engine: str = Field("auto", description="where collecting and learning happen; auto: the fastest in short trials")
    n_workers: int | None = Field(None, ge=1, le=4096, description="threads or processes; default: the cores")
    n_learners: Annotated[int, Field(ge=1)] | Literal["auto"] | None = Field(
        None,
        description="actor-learner: learner processes, default: the spare cores; "
        "ray: learner actors, default: learning in the first process",
    )
    wait_for: float = Field(1.0, gt=0, le=1, description="sync: share of the workers to wait for every turn")
    max_lag: int | None = Field(
        None, ge=0, description="largest policy lag, in versions, where engines do not wait; default: the learner's"
    )
    on_lag: Literal["wait", "drop"] = Field("wait", description="what to do before max_lag is exceeded")
    publish_interval: int = Field(8, ge=1, description="actor-learner: updates between published versions")
    sync_interval: int = Field(25, ge=1, description="actor-learner: turns between checks for newer weights")
    free_running: bool = Field(
        False, description="actor-learner: learners make more updates than planned instead of waiting"
    )
    address: str | None = Field(None, description="ray: of a running cluster; default: a new one on this machine")
    actor_cpus: float = Field(1.0, ge=0, description="ray: cores that each actor claims, and players it has")
    actor_gpus: float = Field(0.0, ge=0, description="ray: GPUs, or a share of one, that each actor claims")
    actor_resources: dict[str, float] = Field({}, description="ray: other claims of each actor, e.g. {simulator: 1}")
    learner_cpus: float = Field(1.0, ge=0, description="ray: cores that each learner actor claims, and threads it uses")
    learner_gpus: float = Field(0.0, ge=0, description="ray: GPUs, or a share of one, that each learner actor claims")
    deterministic: bool = Field(False, description="wait by round, so that every engine gives the same weights")
    device: str = Field(
        "auto",
        description="of the networks: cpu, cuda, cuda:1, or several with commas, which share the learners; "
        "auto: cuda where there is one",
    )

    evaluate_every: int | None = Field(
        None,
        ge=0,
        description="episodes between evaluations, which choose `best`; default: 30 × evaluate_episodes; 0: at the end",
    )
    evaluate_episodes: int = Field(64, ge=1, description="episodes per evaluation")
    evaluate_mode: Literal["greedy", "sampled"] = Field(
        "greedy", description="while training, evaluate the best actions, or actions drawn as in training"
    )
    checkpoint_every: int = Field(1000, ge=1, description="episodes between checkpoints")
    checkpoint_every_s: float = Field(
        600.0, gt=0, le=MAX_S, description="seconds between checkpoints, if that is sooner"
    )
    timeline: bool = Field(False, description="write a trace of every process and thread, for Perfetto")
    log_schedule: bool = Field(
        False, description="actor-learner: log which fragments were learned when, for `remuda replay`"
    )
    pictures: bool = Field(True, description="films while training; learning curve and a film at the end")
    callbacks: list[str] = Field([], description="listeners: wandb, mlflow, or module:Class of your own")
    keep_checkpoints: int = Field(2, ge=1, description="how many checkpoints to keep, besides the best")

    max_failures: float = Field(
        0.1, ge=0, le=1, description="share of failed episodes that ends the run; 0: the first failure does"
    )
    start_limit_s: float = Field(120.0, gt=0, le=MAX_S, description="seconds a worker may take to start")
    turn_limit_s: float = Field(
        600.0, gt=0, le=MAX_S, description="seconds a turn may take before its worker is replaced"
    )
    update_limit_s: float = Field(
        3600.0, gt=0, le=MAX_S, description="seconds for updates of a learner process, or for its state"
    )

    @field_validator("device")
    @classmethod
    def _check_device(cls, value: str) -> str:
        if value != "auto" and not re.fullmatch(r"(cpu|cuda(:\d+)?)(,(cpu|cuda(:\d+)?))*", value):
            raise ValueError("auto, cpu, cuda, cuda:1, or several with commas: cuda:0,cuda:1")
        return value

    def names(self) -> list[str]:
        """The names in it that may stand for objects of a Python session."""
        values = [value for options in self.learner_options.values() for value in options.values()]
        strings = [value for value in values if isinstance(value, str)]
        return [self.game, *map(learner_of, (self.learner, *self.learners.values())), *strings]

    @property
    def round_episodes(self) -> int:
        """Episodes in a round."""
        return min(self.episodes_per_update or self.worlds, self.total_episodes)

    @property
    def rounds(self) -> int:
        """Rounds in the whole run; the last one may have fewer episodes."""
        return -(-self.total_episodes // self.round_episodes)

    def update_rate(self, agent: int) -> float:
        """Gradient steps per episode of an agent, by its number in the herd."""
        rate = self.updates_per_episode
        return rate[agent] if isinstance(rate, list) else rate

    def updates_due(self, episodes: int, agent: int = 0) -> int:
        """Gradient steps due for an agent after `episodes` episodes."""
        return int(episodes * self.update_rate(agent) + 1e-9)

    def updates_in(self, round_: int, agent: int = 0) -> int:
        """Gradient steps due for an agent in a round; rounds count from 1."""
        before, after = self.episodes_after(round_ - 1), self.episodes_after(round_)
        return self.updates_due(after, agent) - self.updates_due(before, agent)

    @property
    def evaluation_interval(self) -> int:
        """Episodes between evaluations; 0: only at the end.

        By default evaluations play one episode for thirty of training, which takes less than 5 % of a run's time, even
        where a greedy episode is longer than one of training (`benchmarks/evaluations.py`).
        """
        return EPISODES_PER_EVALUATED * self.evaluate_episodes if self.evaluate_every is None else self.evaluate_every

    def episodes_after(self, rounds: int) -> int:
        """Episodes collected after so many rounds."""
        return min(rounds * self.round_episodes, self.total_episodes)

    def episodes_in(self, round_: int) -> int:
        """Episodes collected in a round, counted from 1; 0 beyond the last one."""
        return self.episodes_after(round_) - self.episodes_after(round_ - 1)


class ParallelSwitches(Options):
    """The mapping `parallel: {…}`: switches that stand for an engine and a training interval."""

    enabled: bool = Field(True, description="false: engine sequential, with the same result")
    parallel_actions: bool = Field(True, description="all agents observe at the start of the turn")
    parallel_training: bool = Field(True, description="agents learn in processes of their own")
    async_learning: bool = Field(True, description="collecting does not wait for learning")
    train_interval: int = Field(1, ge=1, description="epochs between updates")
    num_workers: int | None = Field(None, ge=1, le=4096, description="threads or processes; null: the cores")
    use_threads: bool = Field(False, description="threads in this process instead of processes")

    @property
    def engine(self) -> str:
        """The engine that these switches stand for."""
        switches = (self.use_threads, self.async_learning, self.parallel_training)
        return _ENGINES_BY_SWITCHES[switches] if self.enabled else "sequential"


_ENGINES_BY_SWITCHES = {
    # use_threads, async_learning, parallel_training
    (True, True, True): "threads",
    (True, True, False): "threads",
    (True, False, True): "vectorized",
    (True, False, False): "vectorized",
    (False, True, True): "actor-learner",
    (False, True, False): "executor",
    (False, False, True): "sync",
    (False, False, False): "sync",
}
