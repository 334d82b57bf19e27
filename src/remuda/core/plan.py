"""The plan: everything that decides what is computed and where, validated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from remuda.core.options import Options


class Plan(Options):
    """What is to be computed, and where. The first part decides the result, the second only the speed."""

    aliases: ClassVar[Mapping[str, str]] = {"policy": "learner"}

    game: str = Field(description="a shipped game, or module:entry of your own; from Python also the entry or a class")
    options: dict[str, Any] = Field({}, description="options of the game")
    worlds: int = Field(16, ge=1, description="copies of the game played side by side")
    total_episodes: int = Field(4000, ge=1, description="episodes to train for, over all worlds")
    seed: int = Field(0, ge=0, lt=2**63, description="decides every random number of the run")
    learner: str = Field("iqn", description="who plays and learns, unless `learners` says otherwise")
    learners: dict[str, str] = Field({}, description="per agent or range of agents, e.g. {0-3: iqn, 4: random}")
    learner_options: dict[str, dict[str, Any]] = Field({}, description="options of each learner, by its name")
    episodes_per_update: int | None = Field(None, ge=1, description="episodes in a round; default: worlds")
    updates_per_episode: float = Field(1.0, gt=0, le=1000, description="gradient steps per agent and episode")
    lag: int = Field(0, ge=0, le=1, description="1: collect the next round while the last one trains")
    parallel_actions: bool = Field(True, description="all agents observe at the start of the turn")
    warm_start: str | None = Field(
        None, description="a run whose learners these begin as: weights, optimisers, statistics; clocks start anew"
    )
    precision: Literal["fp32", "bf16"] = Field("fp32", description="of the matrix products")

    engine: str = Field("vectorized", description="where collecting and learning happen; auto: what suits the game")
    n_workers: int | None = Field(None, ge=1, le=4096, description="threads or processes; default: the cores")
    n_learners: int | None = Field(None, ge=1, description="actor-learner: learner processes; default: the spare cores")
    wait_for: float = Field(1.0, gt=0, le=1, description="sync: share of the workers to wait for every turn")
    max_lag: int | None = Field(
        None, ge=0, description="versions between acting and learning where engines run free; default: the learner's"
    )
    on_lag: Literal["wait", "drop"] = Field("wait", description="what to do rather than exceed max_lag")
    publish_interval: int = Field(8, ge=1, description="actor-learner: updates between published versions")
    sync_interval: int = Field(25, ge=1, description="actor-learner: turns between looks for newer weights")
    free_running: bool = Field(
        False, description="actor-learner: learners never wait, whatever updates_per_episode says"
    )
    address: str | None = Field(None, description="ray: of a cluster that exists; default: one on this machine")
    actor_cpus: float = Field(1.0, ge=0, description="ray: cores that each actor claims")
    actor_gpus: float = Field(0.0, ge=0, description="ray: GPUs, or a share of one, that each actor claims")
    actor_resources: dict[str, float] = Field({}, description="ray: what else each actor claims, e.g. {simulator: 1}")
    deterministic: bool = Field(False, description="wait so that every engine gives the same weights")
    device: Literal["cpu", "cuda", "auto"] = Field("auto", description="where the networks live")

    evaluate_every: int = Field(0, ge=0, description="episodes between evaluations; 0: only at the end")
    evaluate_episodes: int = Field(64, ge=1, description="episodes per evaluation")
    checkpoint_every: int = Field(1000, ge=1, description="episodes between checkpoints")
    checkpoint_every_s: float = Field(600.0, gt=0, description="seconds between checkpoints, where that is sooner")
    timeline: bool = Field(False, description="write what every process and thread did when, for Perfetto")
    log_schedule: bool = Field(
        False, description="actor-learner: write down who learned what when, for `remuda replay`"
    )
    pictures: bool = Field(True, description="draw the learning curve and a film when training ends")
    keep_checkpoints: int = Field(2, ge=1, description="how many checkpoints to keep, besides the best")

    max_failures: float = Field(
        0.1, ge=0, le=1, description="share of failures to play an episode that ends the run; 0: the first one does"
    )
    start_limit_s: float = Field(120.0, gt=0, description="longest a worker may take to start")
    turn_limit_s: float = Field(600.0, gt=0, description="longest a turn may take before its worker is replaced")
    update_limit_s: float = Field(3600.0, gt=0, description="longest some updates may take, or handing over the state")

    def names(self) -> list[str]:
        """The names in it that may stand for objects of a Python session."""
        values = (value for options in self.learner_options.values() for value in options.values())
        return [self.game, *(value for value in values if isinstance(value, str))]

    @property
    def round_episodes(self) -> int:
        """Episodes collected before each round of updates."""
        return min(self.episodes_per_update or self.worlds, self.total_episodes)

    @property
    def rounds(self) -> int:
        """Rounds in the whole run; the last one may be shorter."""
        return -(-self.total_episodes // self.round_episodes)

    def updates_due(self, episodes: int) -> int:
        """Gradient steps every agent has made once `episodes` were taken in."""
        return int(episodes * self.updates_per_episode + 1e-9)

    def updates_in(self, round_: int) -> int:
        """Gradient steps every agent makes in a round, counted from 1."""
        return self.updates_due(self.episodes_after(round_)) - self.updates_due(self.episodes_after(round_ - 1))

    def episodes_after(self, rounds: int) -> int:
        """Episodes collected after so many rounds."""
        return min(rounds * self.round_episodes, self.total_episodes)


class ParallelSwitches(Options):
    """The familiar switches of parallel training: another way to name an engine and to say how often to train."""

    enabled: bool = Field(True, description="false: engine sequential, with the same result")
    parallel_actions: bool = Field(True, description="all agents observe at the start of the turn")
    parallel_training: bool = Field(True, description="agents learn in processes of their own")
    async_learning: bool = Field(True, description="collecting does not wait for learning")
    train_interval: int = Field(1, ge=1, description="epochs between updates")
    num_workers: int | None = Field(None, ge=1, le=4096, description="threads or processes; null: the cores")
    use_threads: bool = Field(False, description="threads in this process instead of processes")

    @property
    def engine(self) -> str:
        """The engine these switches mean."""
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
