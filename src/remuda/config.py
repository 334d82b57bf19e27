"""The plan: everything that decides what is computed, validated; YAML, flags and keywords meet here."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from remuda.errors import ConfigError, UnknownName, first_line

MOST_BYTES = 8 << 20
"""Of a file of settings."""
MOST_VALUES = 250_000
"""In settings, with aliases written out: a few lines of them can stand for billions."""
DEEPEST = 50
"""Lists and mappings inside each other, in settings."""
LARGEST = 2**63 - 1
"""Of whole numbers; there are some that Python itself refuses to print."""
MOST_SHOWN = 200
"""Characters of a wrong value in an error."""


class Options(BaseModel):
    """A frozen set of named values; unknown names and wrong types are one-sentence errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    aliases: ClassVar[Mapping[str, str]] = {}
    """Other names that options go by."""

    @classmethod
    def read(cls, values: Mapping[str, Any], owner: str) -> Self:
        """Validate `values`; `owner` says in errors whose options these are."""
        values = cls.own_names(values)
        for name, value in values.items():
            if name not in cls.model_fields:
                raise UnknownName(f"option of {owner}", name, cls.model_fields)
            if isinstance(value, int) and abs(value) > LARGEST:
                raise ConfigError(f"{name}={_shown(value)} ({owner}) should be at most {LARGEST}")
        try:
            options = cls(**values)
        except ValidationError as error:
            raise ConfigError(_sentence(error, owner)) from None
        options.check()
        return options

    @classmethod
    def own_names(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """`values` with aliases replaced by the names they stand for."""
        for alias, name in cls.aliases.items():
            if alias in values and name in values:
                raise ConfigError(f"{alias} and {name} say the same thing twice: give one of them")
        return {cls.aliases.get(name, name): value for name, value in values.items()}

    def check(self) -> None:
        """Raise ConfigError where values that are fine alone contradict each other."""


def _sentence(error: ValidationError, owner: str) -> str:
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else "?"
    message = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return f"{name}={_shown(first['input'])} ({owner}) should be {message}"


def _shown(value: Any) -> str:
    """A wrong value as an error shows it: not the whole of something huge."""
    try:
        text = repr(value)
    except ValueError:
        text = "a number too long to be printed"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


class Plan(Options):
    """What is to be computed, and where. The first part decides the result, the second only the speed."""

    aliases: ClassVar[Mapping[str, str]] = {"policy": "learner"}

    game: str = Field(description="a shipped game, or module:entry of your own")
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


class Parallel(Options):
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


class _Loader(yaml.SafeLoader):
    """Reads plain YAML, and stops early where it is not meant to be read by a person."""

    values = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """The next value, unless there are too many; aliases are counted later."""
        self.values += 1
        if self.values > MOST_VALUES:
            raise ValueError(f"it has more than {MOST_VALUES:,} values")
        return super().compose_node(parent, index)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """A whole number of at most 64 bits."""
        value: int = super().construct_yaml_int(node) if len(node.value) < 100 else LARGEST + 1
        if abs(value) > LARGEST:
            raise ValueError(f"{node.value[:30]}… is larger than {LARGEST}")
        return value


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def _parse(text: str) -> Any:
    """Plain YAML as values; whatever is raised is about the text."""
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        _check_size(root)
        return loader.construct_document(root)
    finally:
        loader.dispose()


def _check_size(root: yaml.Node) -> None:
    """Raise if values lie too deep or, with every alias written out, are too many."""
    waiting, values = [(root, 1)], 0
    while waiting:
        node, depth = waiting.pop()
        values += 1
        if values > MOST_VALUES:
            raise ValueError(f"it has more than {MOST_VALUES:,} values, with aliases written out")
        if depth > DEEPEST:
            raise ValueError(f"it has more than {DEEPEST} levels")
        if isinstance(node, yaml.CollectionNode):
            own = chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
            waiting.extend((child, depth + 1) for child in own)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; tags that would build objects are refused."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
        content = _parse(text.decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"config file {path} cannot be read: {error.strerror}") from None
    except Exception as error:  # the file is foreign: whatever its reader raises is about the file
        raise ConfigError(f"config file {path} is not plain YAML: {first_line(error)}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"config file {path} should be a mapping of option names to values")
    return {str(name): value for name, value in content.items()}


def write_yaml(path: Path, plan: Plan) -> None:
    """The plan as a YAML file that `read_yaml` takes back."""
    path.write_text(yaml.safe_dump(plan.model_dump(mode="json"), sort_keys=False), encoding="utf-8")


def read_assignments(assignments: list[str]) -> dict[str, Any]:
    """`key=value` words as a mapping; values are YAML scalars or lists."""
    result: dict[str, Any] = {}
    for word in assignments:
        name, sign, text = word.partition("=")
        if not sign or not name:
            raise ConfigError(f"{word!r} is not of the form key=value")
        try:
            result[name] = _parse(text)
        except Exception as error:  # it is foreign: whatever its reader raises is about the word
            raise ConfigError(f"the value of {_shown(word)} is not plain YAML: {first_line(error)}") from None
        if not text.strip():
            raise ConfigError(f"{word!r} has no value: give one, or leave it out")
        if isinstance(result[name], str):
            result[name] = _number(result[name])
    return result


def _number(text: str) -> Any:
    """YAML 1.1 takes 1e-3 for a word; people mean the number."""
    try:
        return float(text)
    except ValueError:
        return text
