"""Parity with SocialJax: replays recorded transitions through our compiled rules and compares every cell and view.

Each recorded step is a world of its own: it gets the recorded state, actions and random draws, plays one turn with
`rules=socialjax`, and is compared with the next recorded state. Errors do not accumulate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.errors import TraceError
from remuda.games import cleanup, coins, harvest
from remuda.games.grid import EMPTY, WALL, RecordedDraws
from remuda.games.social import SocialGame
from remuda.games.trace_files import find_traces, read_arrays

FIELDS = ("grid", "agent_locs", "next_locs", "dirt", "rewards", "obs")
STATE = ("grid", "agent_locs", "next_locs", "actions", "rewards")
DRAWS = {
    "cleanup": (
        "draw_apple_u", "draw_dirt_cell", "draw_dirt_u", "draw_move_priority", "draw_spawn_perm", "draw_spawn_dir",
    ),
    "harvest": ("draw_apple_u", "draw_move_priority", "draw_spawn_perm", "draw_spawn_dir"),
    "coins": ("draw_green_u", "draw_red_u", "draw_move_priority"),
}  # fmt: skip
CODES = {"cleanup": cleanup.SOCIALJAX_CODES, "harvest": harvest.SOCIALJAX_CODES, "coins": coins.SOCIALJAX_CODES}
FIRST_AGENTS = {"cleanup": (8, 10), "harvest": (4, 6), "coins": (4, 5)}
"""The code of agent 0: ours, and SocialJax's."""
SHAPES = {(19, 28): "cleanup", (16, 22): "harvest", (16, 11): "coins"}
MARKS = {"cleanup": (cleanup.ZAPPED, cleanup.WASHED), "harvest": (harvest.ZAPPED,), "coins": ()}
CHANCE_FREE: dict[str, dict[str, Any]] = {
    "cleanup": {"growth": 0.0, "dirt": 0.0}, "harvest": {"growth": [0.0] * 4}, "coins": {"coins": 0.0},
}  # fmt: skip
FOREVER = 1 << 40
MAX_STEPS = 100_000


@dataclass(frozen=True)
class SocialTrace:
    """One file: consecutive steps of one world."""

    path: Path
    game: str
    arrays: dict[str, NDArray[Any]]

    @property
    def steps(self) -> int:
        """How many transitions it holds."""
        return len(self.arrays["actions"])

    @property
    def has_draws(self) -> bool:
        """Whether it has random draws; a trace without was recorded with growth switched off."""
        return any(name in self.arrays for name in DRAWS[self.game])


@dataclass
class TraceReport:
    """What was checked, and in how many steps each field differed."""

    game: str
    files: int = 0
    others: int = 0  # files of other games, which were left out
    steps: int = 0
    views: int = 0
    mismatches: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FIELDS, 0))
    first: str | None = None  # a text about the first mismatch

    @property
    def good(self) -> bool:
        """Whether there is no mismatch."""
        return not any(self.mismatches.values())

    def __str__(self) -> str:
        verdict = "no mismatch in any field" if self.good else f"{sum(self.mismatches.values()):,} mismatches"
        others = f"; {self.others} files of other games left out" if self.others else ""
        head = f"{self.game}: {self.files} files, {self.steps:,} steps, {self.views:,} views checked: {verdict}{others}"
        rows = [f"  {name:12s} {count:>9,}" for name, count in self.mismatches.items()]
        return "\n".join([head, f"  {'field':12s} mismatches", *rows, *([self.first] if self.first else [])])


def verify_cleanup(folder: Path | str) -> TraceReport:
    """Compare recordings of Clean Up."""
    return verify_game("cleanup", folder)


def verify_harvest(folder: Path | str) -> TraceReport:
    """Compare recordings of Harvest, open and closed."""
    return verify_game("harvest", folder)


def verify_coins(folder: Path | str) -> TraceReport:
    """Compare recordings of Coins."""
    return verify_game("coins", folder)


def verify_game(game: str, folder: Path | str) -> TraceReport:
    """Replay every trace of one game below a folder and compare."""
    report = TraceReport(game)
    for path in find_traces(Path(folder)):
        trace = read_social_trace(path)
        if trace.game == game:
            _check(trace, report)
        else:
            report.others += 1
    if not report.files:
        raise TraceError(f"no trace of {game} below {folder}: {report.others} files are of other games")
    return report


def read_social_trace(path: Path) -> SocialTrace:
    """A trace whose arrays have the right shapes and whose numbers are in range; otherwise raises TraceError."""
    names = {*STATE, "dirt", "obs", "inner_t0", *(name for group in DRAWS.values() for name in group)}
    arrays = read_arrays(path, names)
    for name in STATE:
        if name not in arrays:
            raise TraceError(f"trace {path} has no array {name!r}")
    shape = arrays["grid"].shape
    if len(shape) != 3 or shape[1:] not in SHAPES:
        raise TraceError(f"trace {path}: grid is {shape}, not (steps + 1, height, width) of {', '.join(CODES)}")
    trace = SocialTrace(path, SHAPES[shape[1:]], arrays)
    _check_shapes(trace)
    _check_numbers(trace)
    return trace


def _wanted_shapes(trace: SocialTrace, game: SocialGame) -> dict[str, tuple[int, ...]]:
    """The shape of every array; draws are wanted only if there are any."""
    arrays, steps = trace.arrays, len(trace.arrays["grid"]) - 1
    agents, height, width = game.spec.groups[0].size, *trace.arrays["grid"].shape[1:]
    shapes: dict[str, tuple[int, ...]] = {
        "grid": (steps + 1, height, width), "agent_locs": (steps + 1, agents, 3), "next_locs": (steps + 1, agents, 3),
        "actions": (steps, agents), "rewards": (steps, agents),
    }  # fmt: skip
    if trace.game == "cleanup":
        shapes["dirt"] = (steps + 1, height, width)
    if "obs" in arrays:
        seen = min(len(arrays["obs"]) if arrays["obs"].ndim else 0, steps)
        shapes["obs"] = (seen, agents, *game.spec.groups[0].obs_shape)
    if trace.has_draws:
        scratch = game.scratch
        cells, spawns = scratch.grow.shape[1], len(scratch.order)
        known = {
            "draw_apple_u": (steps, cells), "draw_green_u": (steps, cells), "draw_red_u": (steps, cells),
            "draw_dirt_cell": (steps, 2), "draw_dirt_u": (steps,), "draw_move_priority": (steps, agents),
            "draw_spawn_perm": (steps, spawns), "draw_spawn_dir": (steps, agents),
        }  # fmt: skip
        shapes |= {name: known[name] for name in DRAWS[trace.game]}
    return shapes


def _check_shapes(trace: SocialTrace) -> None:
    if not 2 <= len(trace.arrays["grid"]) <= MAX_STEPS + 1:
        raise TraceError(f"trace {trace.path} has {len(trace.arrays['grid'])} states: it should have 2 to {MAX_STEPS}")
    for name, shape in _wanted_shapes(trace, _make_game(trace, 1)).items():
        if name not in trace.arrays:
            raise TraceError(f"trace {trace.path} has no array {name!r}")
        array = trace.arrays[name]
        if array.shape != shape:
            raise TraceError(f"trace {trace.path}: {name} is {array.shape}, not {shape}")
        kinds = "f" if name == "rewards" or name.endswith("_u") else "iu"
        if array.dtype.kind not in kinds:
            raise TraceError(
                f"trace {trace.path}: {name} holds {array.dtype}, not {'floats' if kinds == 'f' else 'ints'}"
            )
    first = trace.arrays.get("inner_t0", np.array(0))
    if first.shape != () or first.dtype.kind not in "iu" or not 0 <= first < FOREVER // 2:
        raise TraceError(f"trace {trace.path}: inner_t0 is not a turn")


def _check_numbers(trace: SocialTrace) -> None:
    """Refuse numbers out of range: compiled code uses them as indices without a check."""
    arrays, game = trace.arrays, trace.game
    height, width = arrays["grid"].shape[1:]
    agents = arrays["actions"].shape[1]
    codes = [0, *CODES[game].values(), *range(FIRST_AGENTS[game][1], FIRST_AGENTS[game][1] + agents)]
    limit = np.array([height, width, 4])
    good: dict[str, Any] = {
        "grid": np.isin(arrays["grid"], codes),
        "agent_locs": (arrays["agent_locs"] >= 0) & (arrays["agent_locs"] < limit),
        "next_locs": (arrays["next_locs"] >= 0) & (arrays["next_locs"] < limit),
        "actions": (arrays["actions"] >= 0) & (arrays["actions"] < {"cleanup": 9, "harvest": 8, "coins": 7}[game]),
        "rewards": np.isfinite(arrays["rewards"]),
    }
    if game == "cleanup":
        good["dirt"] = (arrays["dirt"] >= 0) & (arrays["dirt"] <= 2)
    if trace.has_draws:
        good |= {name: np.isfinite(arrays[name]) for name in DRAWS[game] if name.endswith("_u")}
        if "draw_spawn_perm" in DRAWS[game]:
            spawns = arrays["draw_spawn_perm"].shape[1]
            good["draw_spawn_perm"] = np.sort(arrays["draw_spawn_perm"], axis=1) == np.arange(spawns)
            good["draw_spawn_dir"] = (arrays["draw_spawn_dir"] >= 0) & (arrays["draw_spawn_dir"] < 4)
        if game == "cleanup":
            good["draw_dirt_cell"] = (arrays["draw_dirt_cell"] >= 0) & (arrays["draw_dirt_cell"] < limit[:2])
    for name, where in good.items():
        if not where.all():
            step = np.argwhere(~where)[0][0]
            raise TraceError(f"trace {trace.path}: {name} has a number out of range in step {step}")
    for name in ("agent_locs", "next_locs"):
        cells = np.sort(arrays[name][:, :, 0].astype(np.int64) * width + arrays[name][:, :, 1], axis=1)
        if (cells[:, 1:] == cells[:, :-1]).any():
            raise TraceError(f"trace {trace.path}: two agents have the same place in {name}")


def _make_game(trace: SocialTrace, worlds: int) -> SocialGame:
    options: dict[str, Any] = {"rules": "socialjax", "turns": FOREVER}
    if not trace.has_draws:
        options |= CHANCE_FREE[trace.game]
    numbers = range(worlds)
    if trace.game == "coins":
        return coins.Coins(coins.CoinsOptions(**options), numbers)
    if trace.game == "cleanup":
        return cleanup.Cleanup(cleanup.CleanupOptions(**options), numbers)
    closed = (trace.arrays["grid"][0] == 1).any()
    return harvest.Harvest(harvest.HarvestOptions(map="closed" if closed else "open", **options), numbers)


def _load_state(trace: SocialTrace, game: SocialGame) -> None:
    """Give world t the recorded state t and the actions of step t."""
    arrays, state, name = trace.arrays, game.state, trace.game
    keys = np.zeros(trace.steps, np.uint64)
    game.reset(np.arange(trace.steps), keys)
    theirs = arrays["grid"][:-1]
    state.ground[:] = np.where(game.rules.ground == WALL, WALL, EMPTY)
    if name == "cleanup":
        state.ground[:, game.rules.ground == cleanup.RIVER] = cleanup.RIVER
    for code, other in CODES[name].items():
        layer = state.marks if code in MARKS[name] else state.ground
        layer[theirs == other] = code
    if name == "cleanup":
        state.ground[arrays["dirt"][:-1] == 1] = cleanup.CLEAN
        state.ground[arrays["dirt"][:-1] == 2] = cleanup.DIRT
    state.places[:] = arrays["agent_locs"][:-1]
    state.starts[:] = arrays["next_locs"][:-1]
    state.who[:] = 0
    for agent in range(state.places.shape[1]):
        rows, cols = state.places[:, agent, 0], state.places[:, agent, 1]
        state.who[np.arange(trace.steps), rows, cols] = 1 + agent
    if name != "coins":
        state.inventory[1:, :, 0] = (arrays["rewards"] > 0).cumsum(axis=0)[:-1]
    state.actions[:] = arrays["actions"]
    state.turn[:] = np.arange(trace.steps) + int(arrays.get("inner_t0", 0))


def _draws(trace: SocialTrace, game: SocialGame) -> RecordedDraws:
    arrays, steps, scratch = trace.arrays, trace.steps, game.scratch
    agents, spawns, cells = len(scratch.hit), len(scratch.order), scratch.grow.shape[1]
    draws = RecordedDraws(
        priority=np.tile(np.arange(agents), (steps, 1)),
        order=np.tile(np.arange(spawns), (steps, 1)),
        facing=np.zeros((steps, agents), np.int64),
        grow=np.ones((steps, 2, cells), np.float32),
        picked=np.zeros((steps, 2), np.int64),
        luck=np.ones(steps),
    )
    if not trace.has_draws:
        return draws
    draws.priority[:] = arrays["draw_move_priority"]
    if trace.game == "coins":
        draws.grow[:, 0], draws.grow[:, 1] = arrays["draw_green_u"], arrays["draw_red_u"]
        return draws
    draws.grow[:, 0] = arrays["draw_apple_u"]
    draws.order[:] = np.argsort(arrays["draw_spawn_perm"], axis=1)
    draws.facing[:] = arrays["draw_spawn_dir"]
    if trace.game == "cleanup":
        draws.picked[:] = arrays["draw_dirt_cell"]
        draws.luck[:] = arrays["draw_dirt_u"]
    return draws


def replay_trace(trace: SocialTrace) -> dict[str, NDArray[Any]]:
    """Every field as our rules compute it after each step, in the shape of the trace."""
    game = _make_game(trace, trace.steps)
    _load_state(trace, game)
    game.replay(_draws(trace, game))
    state, margin = game.state, game.view.margin
    ours, theirs = FIRST_AGENTS[trace.game]
    table = np.zeros(ours + state.places.shape[1], np.int64)
    for code, other in CODES[trace.game].items():
        table[code] = other if code else 0
    table[ours:] = theirs + np.arange(state.places.shape[1])
    found: dict[str, NDArray[Any]] = {
        "grid": table[state.codes[:, margin:-margin, margin:-margin]],
        "agent_locs": state.places,
        "next_locs": state.starts,
        "rewards": game.signals[0].rewards,
    }
    if trace.game == "cleanup":
        found["dirt"] = (state.ground == cleanup.CLEAN) * 1 + (state.ground == cleanup.DIRT) * 2
    if "obs" in trace.arrays:
        group = game.spec.groups[0]
        views = np.empty((trace.steps, group.size, *group.obs_shape), np.int8)
        game.observe(0, 0, group.size, views)
        found["obs"] = views[: len(trace.arrays["obs"])]
    return found


def _recorded(trace: SocialTrace, name: str) -> NDArray[Any]:
    return trace.arrays[name] if name in ("rewards", "obs") else trace.arrays[name][1:]


def _check(trace: SocialTrace, report: TraceReport) -> None:
    found = replay_trace(trace)
    report.files += 1
    report.steps += trace.steps
    report.views += found["obs"].shape[0] * found["obs"].shape[1] if "obs" in found else 0
    for name, ours in found.items():
        theirs = _recorded(trace, name)
        wrong = (ours != theirs).reshape(len(ours), -1).any(axis=1)
        report.mismatches[name] += int(wrong.sum())
        if report.first is None and wrong.any():
            report.first = _explain(trace, name, int(wrong.argmax()), ours, theirs)


def _explain(trace: SocialTrace, name: str, step: int, ours: NDArray[Any], theirs: NDArray[Any]) -> str:
    """A text about the first mismatch of a file."""
    places = np.argwhere(ours[step] != theirs[step])[:5].tolist()
    differences = [
        f"    {name}{place}: recorded {theirs[step][tuple(place)]}, ours {ours[step][tuple(place)]}" for place in places
    ]
    return "\n".join(
        [
            f"first mismatch: {trace.path}, step {step}",
            f"  actions {trace.arrays['actions'][step].tolist()}, from {trace.arrays['agent_locs'][step].tolist()}",
            *differences,
        ]
    )
