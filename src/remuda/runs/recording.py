"""Recorded episodes, in a file that any program reads: numpy's .npz, without pickle.

| array | shape | what it is |
| --- | --- | --- |
| `header` | (bytes,) uint8 | UTF-8 JSON: game, options, seed, groups, who played …; see `Recording` |
| `turns` | (episodes,) | turns of each episode |
| `episodes`, `worlds` | (episodes,) | its number, and the number of the world it was played in |
| `keys` | (episodes,) uint64 | all random numbers of the episode derive from it: `game.reset(worlds, keys)` |
| `group0_observations` | (episodes, longest + 1, agents, …) | entry t is what the agents saw in turn t |
| `group0_actions` | (episodes, longest, agents) int64 | |
| `group0_rewards` | (episodes, longest, agents) float32 | all that reached the agent until its next observation |
| `group0_terminated`, `group0_truncated` | (episodes, longest, agents) bool | died or ended by the rules; cut off |
| `group0_alive` | (episodes, longest, agents) bool | acted in this turn; where False the other arrays mean nothing |
| `group0_metrics` | (episodes, longest, agents, metrics) float32 | the game's counts up to the end of this turn |
| `group0_action_mask` | (episodes, longest + 1, agents, actions) bool | what is allowed; only of masked groups |

`group1_…` follow where there are several groups. Beyond an episode's end everything is 0. What happened in a turn (an
event) is the difference between two turns' metrics.
"""

from __future__ import annotations

import json
import math
import os
import stat
import warnings
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.errors import ConfigError, StorageError, TraceError, first_line
from remuda.core.fragment import Fragment, Purpose
from remuda.core.game import Game, GameSpec, Group, make_game
from remuda.core.paths import exists, is_folder
from remuda.core.task import Task
from remuda.core.threads import one_thread_each
from remuda.games.registry import AnyGame, find_game, game_name
from remuda.learners.herd import weights_sha256
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.runs.directory import RunDirectory, to_json
from remuda.runs.evaluation import BATCHED, EvaluationSetup, is_run

FORMAT, VERSION = "remuda-recording", 1
MAX_BYTES = 1 << 32
"""Largest size of all arrays of a recording together."""
MAX_GROUPS = 1024
PER_EPISODE = {"turns": np.int64, "episodes": np.int64, "worlds": np.int64, "keys": np.uint64}


@dataclass(frozen=True)
class GroupRecording:
    """What happened to one group; the shapes are in the module's docstring."""

    observations: NDArray[Any]
    actions: NDArray[np.int64]
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    alive: NDArray[np.bool_]
    metrics: NDArray[np.float32]
    action_mask: NDArray[np.bool_] | None


@dataclass(frozen=True, repr=False)
class Recording:
    """Recorded episodes.

    The header has `format`, `version`, `game`, `options`, `seed`, `purpose`, `exploration`, `parallel_actions` (False:
    each agent observed just before it acted), `groups` (name, agents, obs_shape, obs_dtype, low, high (null: none),
    actions, metrics, masked), `players` (of each agent), and of a trained herd `run`, `checkpoint`, `weights_sha256`.
    """

    header: dict[str, Any]
    turns: NDArray[np.int64]
    episodes: NDArray[np.int64]
    worlds: NDArray[np.int64]
    keys: NDArray[np.uint64]
    groups: list[GroupRecording]

    @classmethod
    def read(cls, path: Path | str) -> Recording:
        """Read a file that `remuda.record` wrote; every shape and type is checked first."""
        return read(path)

    def start(self, game: AnyGame) -> Game:
        """Worlds of `game` at the start of the recorded episodes, one per episode: `step` them with the actions."""
        worlds = make_game(find_game(game_name(game)), self.header["options"], self.worlds.tolist())
        worlds.reset(np.arange(len(self.worlds)), self.keys)
        return worlds

    def __repr__(self) -> str:
        return f"Recording of {self.header['game']}: {len(self.turns)} episodes, {int(self.turns.sum())} turns"


def record(
    target: RunDirectory | Path | AnyGame,
    out: Path | str = "episodes.npz",
    episodes: int = 10,
    exploration: float = 0.0,
    checkpoint: str | None = None,
    *,
    game: AnyGame | None = None,
    trust: bool = False,
    **settings: Any,
) -> Recording:
    """Play test episodes 0 … episodes-1 of a run or a game and write them to a file that must not exist yet.

    A game is played by random players unless `learner` or `learners` names others. The other arguments are those of
    `remuda.evaluate`.
    """
    file = Path(out)
    if exists(file):
        raise ConfigError(f"out={file} exists already: give a file that does not")
    if not is_folder(file.absolute().parent):
        raise ConfigError(f"out={file} cannot be written: there is no directory {file.absolute().parent}")
    if episodes < 1:
        raise ConfigError(f"episodes={episodes} should be at least 1")
    if not 0 <= exploration <= 1:
        raise ConfigError(f"exploration={exploration} should be a share from 0 to 1")
    if not is_run(target) and not {"learner", "learners", "policy"} & set(settings):
        settings["learner"] = "random"
    setup = EvaluationSetup.of(target, settings, checkpoint, game, trust)
    size = episodes * setup.spec.turns * sum(map(_bytes_per_turn, setup.spec.groups))
    if size > MAX_BYTES:
        raise ConfigError(f"episodes={episodes} could take {size:,} bytes: record at most {MAX_BYTES:,} in one file")
    with one_thread_each():
        recording = _play(setup, episodes, exploration)
    _write(file, recording)
    return recording


def _bytes_per_turn(group: Group) -> int:
    each = math.prod(group.obs_shape) * np.dtype(group.obs_dtype).itemsize + 8 + 4 + 3 + 4 * len(group.metrics)
    return group.size * (each + (group.actions if group.masked else 0))


def _play(setup: EvaluationSetup, episodes: int, exploration: float) -> Recording:
    """Play all episodes, TOGETHER at a time, and join them."""
    chunks = []
    for first in range(0, episodes, BATCHED):
        numbers = tuple(range(first, min(first + BATCHED, episodes)))
        chunks.append(_play_some(setup, Task(numbers, Purpose.TEST, exploration)))
    longest = max(int(chunk.turns.max()) for chunk in chunks)
    whole = {name: np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in PER_EPISODE}
    groups = []
    for g in range(len(setup.spec.groups)):
        parts = [vars(chunk.groups[g]) for chunk in chunks]
        names = [name for name, array in parts[0].items() if array is not None]
        joined = {name: np.concatenate([_padded(name, part[name], longest) for part in parts]) for name in names}
        groups.append(_group(joined))
    return Recording(_header(setup, exploration), **whole, groups=groups)


def _group(arrays: Mapping[str, Any]) -> GroupRecording:
    """A group from its arrays by name; unmasked groups have no mask."""
    return GroupRecording(**{"action_mask": None, **arrays})


def _padded(name: str, array: NDArray[Any], longest: int) -> NDArray[Any]:
    """An array (episodes, turns, …), padded to the turns of the longest episode."""
    missing = longest + _extra(name) - array.shape[1]
    return np.pad(array, [(0, 0), (0, missing), *[(0, 0)] * (array.ndim - 2)])


def _extra(name: str) -> int:
    """Entries that an array has in addition to one per turn."""
    return 1 if name in ("observations", "action_mask") else 0


def _play_some(setup: EvaluationSetup, task: Task) -> Recording:
    """Play the episodes of one task, all at once."""
    config = RolloutConfig.of(setup.plan)
    worlds = [episode % config.worlds for episode in task.episodes]
    game = make_game(find_game(setup.plan.game), setup.plan.options, worlds)
    rollout = Rollout(game, setup.bindings, config)
    rollout.keep_invalid_samples = True  # record what the game returns, valid or not
    rollout.start(task)
    over: list[NDArray[np.bool_]] = []
    counts: list[list[NDArray[np.float32]]] = []

    def note() -> None:
        """Called before every turn."""
        over.append(game.over.copy())
        counts.append([signals.metrics.copy() for signals in game.signals])

    fragments = rollout.play(rollout.empty_fragments(), note)
    counts.append([fragment.metrics for fragment in fragments])
    turns = (~np.array(over)).sum(axis=0)
    groups = [
        _of_group(fragment, np.array([now[g] for now in counts[1:]]), turns) for g, fragment in enumerate(fragments)
    ]
    return Recording({}, turns, np.array(task.episodes), np.array(worlds), config.keys(task), groups)


def _of_group(fragment: Fragment, metrics: NDArray[np.float32], turns: NDArray[np.int64]) -> GroupRecording:
    """A fragment with the axis of episodes first, and zeros after the end of each."""

    def own(array: NDArray[Any], extra: int = 0) -> NDArray[Any]:
        result = np.ascontiguousarray(array.swapaxes(0, 1))
        beyond = np.arange(result.shape[1]) >= turns[:, None] + extra
        result[beyond] = 0
        return result

    return GroupRecording(
        observations=own(fragment.obs[fragment.before :], 1),
        actions=own(fragment.actions),
        rewards=own(fragment.rewards),
        terminated=own(fragment.terminated),
        truncated=own(fragment.truncated),
        alive=own(fragment.alive),
        metrics=own(metrics),
        action_mask=None if fragment.mask is None else own(fragment.mask, 1),
    )


def _header(setup: EvaluationSetup, exploration: float) -> dict[str, Any]:
    plan = setup.plan
    header = {
        "format": FORMAT,
        "version": VERSION,
        "game": plan.game,
        "options": plan.options,
        "seed": plan.seed,
        "purpose": str(Purpose.TEST),
        "exploration": exploration,
        "parallel_actions": plan.parallel_actions and not setup.spec.in_turn,
        "groups": _describe(setup.spec),
        "players": setup.players,
        "run": None if setup.run is None else str(setup.run.path),
        "checkpoint": setup.checkpoint,
        "weights_sha256": weights_sha256(binding.policy for binding in setup.bindings),
    }
    plain: dict[str, Any] = json.loads(to_json(header))
    return plain


def _describe(spec: GameSpec) -> list[dict[str, Any]]:
    return [
        {
            "name": group.name,
            "agents": group.size,
            "obs_shape": group.obs_shape,
            "obs_dtype": np.dtype(group.obs_dtype).name,
            "low": group.low,
            "high": group.high,
            "actions": group.actions,
            "choices": group.choices,
            "action_shape": group.action_shape,
            "metrics": group.metrics,
            "masked": group.masked,
        }
        for group in spec.groups
    ]


def _write(path: Path, recording: Recording) -> None:
    """Write to a draft file, then rename it: a file of the final name is always complete."""
    arrays: dict[str, Any] = {"header": np.frombuffer(to_json(recording.header).encode(), np.uint8)}
    arrays |= {name: getattr(recording, name) for name in PER_EPISODE}
    for g, group in enumerate(recording.groups):
        arrays |= {f"group{g}_{name}": array for name, array in vars(group).items() if array is not None}
    draft = path.with_name(f".{path.name}.draft")
    try:
        with draft.open("wb") as file:
            np.savez_compressed(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink()
        raise StorageError(f"{path} cannot be written: {error.strerror or error}") from None


def read(path: str | Path) -> Recording:
    """Read a recording; a damaged file raises TraceError with one sentence that says what is wrong."""
    path = Path(path)
    arrays = _read_arrays(path)
    header = _read_header(path, arrays)
    try:
        wanted = _expected(header, len(arrays["turns"]), int(arrays["turns"].max(initial=0)))
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise TraceError(f"recording {path} is damaged: its header does not describe a game ({error!r})") from None
    for name, (shape, dtype) in wanted.items():
        if name not in arrays:
            raise TraceError(f"recording {path} is damaged: it has no array {name!r}")
        if arrays[name].shape != shape or arrays[name].dtype != dtype:
            found = f"{arrays[name].dtype} of shape {arrays[name].shape}"
            raise TraceError(f"recording {path} is damaged: {name} is {found}, not {dtype} of shape {shape}")
    if not (arrays["turns"] >= 0).all():
        raise TraceError(f"recording {path} is damaged: its turns are negative")
    groups = []
    for g in range(len(header["groups"])):
        prefix = f"group{g}_"
        own = {name.removeprefix(prefix): arrays[name] for name in wanted if name.startswith(prefix)}
        groups.append(_group(own))
    for g, (group, facts) in enumerate(zip(groups, header["groups"], strict=True)):
        choices = facts.get("choices", [facts["actions"]])
        limit = choices[0] if len(choices) == 1 else np.array(choices)
        if choices and (group.actions.min(initial=0) < 0 or not (group.actions < limit).all()):
            raise TraceError(f"recording {path} is damaged: group {g} has actions outside of its range")
    return Recording(header, **{name: arrays[name] for name in PER_EPISODE}, groups=groups)


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise TraceError(f"{path} is not a recording: it is not a regular file")
        with zipfile.ZipFile(path) as packed:
            size = sum(member.file_size for member in packed.infolist())
        if size > 2 * MAX_BYTES:
            raise TraceError(f"recording {path} unpacks to {size:,} bytes: that is too large to read")
        with warnings.catch_warnings(action="error"), np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray):
                raise TraceError(f"recording {path} is damaged: {name} is not an array")
    except FileNotFoundError:
        raise TraceError(f"{path} does not exist: give a file that `remuda record` wrote") from None
    except TraceError:
        raise
    except Exception as error:  # the file may hold anything: every error of its reader is about the file
        raise TraceError(f"recording {path} cannot be read: {first_line(error)}") from None
    for name in ("header", "turns"):
        if name not in arrays or arrays[name].ndim != 1:
            raise TraceError(f"{path} is not a recording: it has no {name}")
    return arrays


def _read_header(path: Path, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    try:
        header = json.loads(arrays["header"].tobytes().decode("utf-8"))
    except (ValueError, RecursionError):
        raise TraceError(f"recording {path} is damaged: its header is not JSON") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise TraceError(f"{path} is not a recording: its header does not say {FORMAT!r}")
    if header.get("version") != VERSION:
        raise TraceError(f"recording {path} has version {header.get('version')}: this remuda reads version {VERSION}")
    groups = header.get("groups")
    if not isinstance(groups, list) or not 0 < len(groups) <= MAX_GROUPS:
        raise TraceError(f"recording {path} is damaged: its header has no groups")
    return header


def _expected(header: Mapping[str, Any], episodes: int, longest: int) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Shape and dtype of every array that the header describes."""
    wanted: dict[str, tuple[tuple[int, ...], Any]] = {
        name: ((episodes,), np.dtype(dtype)) for name, dtype in PER_EPISODE.items()
    }
    for g, group in enumerate(header["groups"]):
        size, actions, metrics = int(group["agents"]), int(group["actions"]), len(group["metrics"])
        each = (episodes, longest, size)
        after = (episodes, longest + 1, size)
        chosen = np.dtype(np.int64 if group.get("choices", True) else np.float32)
        flags = dict.fromkeys(("terminated", "truncated", "alive"), (each, np.dtype(np.bool_)))
        own = {
            "observations": ((*after, *map(int, group["obs_shape"])), np.dtype(str(group["obs_dtype"]))),
            "actions": ((*each, *map(int, group.get("action_shape", ()))), chosen),
            "rewards": (each, np.dtype(np.float32)),
            **flags,
            "metrics": ((*each, metrics), np.dtype(np.float32)),
        }
        if group["masked"]:
            own["action_mask"] = ((*after, actions), np.dtype(np.bool_))
        wanted |= {f"group{g}_{name}": expected for name, expected in own.items()}
    return wanted
