"""Mutations of the social dilemmas' rules, one at a time. Run as a program, it prints which trace detects each.

It runs uncompiled (NUMBA_DISABLE_JIT=1), because compiling each changed source would take minutes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from mutants import load

from remuda.core import kernels

PACKAGE = "remuda.games"


class Mutation(NamedTuple):
    """A piece of source that occurs once, and its replacement."""

    rule: str
    game: str
    module: str
    old: str
    new: str


MUTATIONS = (
    Mutation("a turn to the left", "coins", "grid.facing", "places[i, 2] = (facing + 1) % 4", "pass"),
    Mutation("a step to the east", "coins", "grid.facing", "[[0, 0], [0, 0], [0, 1], [0, -1], [1, 0]",
             "[[0, 0], [0, 0], [0, -1], [0, 1], [1, 0]"),
    Mutation("edges", "coins", "grid.facing", "if 0 <= to_row < height and", "if 0 <= to_row < height - 1 and"),
    Mutation("walls", "harvest", "harvest", 'SOLID = np.array([False, True,', 'SOLID = np.array([False, False,'),
    Mutation("the winner of a cell", "cleanup", "grid.facing",
             "priority[j] > priority[i]", "priority[j] < priority[i]"),
    Mutation("agents that stay keep their cell", "cleanup", "grid.facing",
             "elif places[j, 0] == wanted[i, 0] and places[j, 1] == wanted[i, 1]:", "elif False:"),
    Mutation("no swaps", "cleanup", "grid.facing",
             "if to_mine and wanted[i, 0] == places[j, 0] and wanted[i, 1] == places[j, 1]:", "if False:"),
    Mutation("coins appear", "coins", "coins", "else 0.0005", "else 0.005"),
    Mutation("whose coin it is", "coins", "coins",
             "own, metrics = coin == RED + i,", "own, metrics = coin != RED + i,"),
    Mutation("who pays", "coins", "coins", "state.gain[w, 1 - i] -= penalty", "state.gain[w, i] -= penalty"),
    Mutation("rewards times the agents", "coins", "social", "Timing(options.turns, float(agents), False)",
             "Timing(options.turns, 1.0, False)"),
    Mutation("growth with three near", "harvest", "harvest",
             "(0.0, 0.001, 0.005, 0.025))", "(0.0, 0.001, 0.005, 0.005))"),
    Mutation("how far is near", "harvest", "harvest",
             "if rows * rows + cols * cols > 4 or", "if rows * rows + cols * cols > 2 or"),
    Mutation("marks block", "harvest", "harvest",
             "if rules.variant == SOCIALJAX:\n        _stop_at_marks", "if False:\n        _stop_at_marks"),
    Mutation("an apple pays one", "harvest", "harvest", "state.gain[w, i] += 1", "state.gain[w, i] += 2"),
    Mutation("two cells ahead", "harvest", "socialjax", "            ahead = 2\n", "            ahead = 3\n"),
    Mutation("the diagonals", "harvest", "socialjax", "right = -1 if k == 2 else 1", "right = -1"),
    Mutation("beams wrap at the low edge", "cleanup", "socialjax",
             "row = row + height if row < 0 else row", "row = 0 if row < 0 else row"),
    Mutation("the last of a role decides the mark", "cleanup", "socialjax",
             "last[i, 0], last[i, 1], last[i, 2] = r, c, value", "state.marks[w, r, c] = value"),
    Mutation("the facing after a respawn", "cleanup", "grid.placing",
             "state.starts[w, i, 2] = scratch.facing[i]", "pass"),
    Mutation("the share of dirt", "cleanup", "cleanup",
             "water=len(river) + (0 if pot else", "water=len(river) + (0 if True else"),
    Mutation("the threshold", "cleanup", "cleanup",
             "threshold=np.float32(options.threshold)", "threshold=np.float32(0.8)"),
    Mutation("the delay of dirt", "cleanup", "cleanup", "delay = 50 if pot else 51", "delay = 48"),
    Mutation("no dirt under an agent", "cleanup", "cleanup", "== CLEAN and state.who[w, row, col] == 0:", "== CLEAN:"),
    Mutation("cleaning undone by an idle agent", "cleanup", "cleanup",
             "WASHING if state.actions[w, i] == CLEAN_ACTION else DIRT",
             "WASHING if state.actions[w, i] == CLEAN_ACTION else ground[row, col]"),
    Mutation("the shifted self", "cleanup", "socialjax", "marked = min(i + 1, len(places) - 1)", "marked = i"),
    Mutation("the turned view", "cleanup", "socialjax", "turned = facing % 2 == 0", "turned = False"),
    Mutation("who has eaten", "harvest", "socialjax",
             "out[6] = as_int8(eaten[seen]) > 0", "out[6] = as_int8(eaten[i]) > 0"),
)  # fmt: skip


def detected_by(mutation: Mutation, folder: Path) -> str | None:
    """The first trace of the game that detects a mutation."""
    verifier = load(PACKAGE, "social_verify", mutation)
    for path in sorted(folder.glob(f"{mutation.game}*.npz"), key=lambda path: "chancefree" in path.name):
        if not verifier.verify_game(mutation.game, path).good:
            return path.stem
    return None


def main(folder: Path) -> None:
    """Print every mutation and the first trace that detects it."""
    kernels.kernel = lambda function=None, **_: function or (lambda own: own)  # type: ignore[assignment]
    for mutation in MUTATIONS:
        print(f"{mutation.rule}\t{detected_by(mutation, folder) or ''}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
