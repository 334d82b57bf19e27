"""Commands that play trained agents: evaluate, watch, record and export."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

import remuda
from remuda.cli.words import Checkpoint, Exploration, Json, Trust, Words, refuse_arguments, settings_from
from remuda.core.console import QuietConsole
from remuda.core.errors import ConfigError


def evaluate(
    target: Annotated[str, typer.Argument(help="a run directory, or a game whose players learners=… names")],
    words: Words = None,
    episodes: Annotated[int, typer.Option(help="how many", min=1)] = 100,
    epsilon: Exploration = 0.0,
    sampled: Annotated[bool, typer.Option("--sampled", help="draw actions as in training instead of greedily")] = False,
    sampled_group: Annotated[
        list[str] | None, typer.Option(help="a group that draws its actions while others play greedily; repeatable")
    ] = None,
    checkpoint: Checkpoint = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Score a trained herd, or agents of different runs in one world.

    `remuda evaluate runs/a --episodes 500`

    `remuda evaluate runs/a simulator=cyborg`: other options of the run's game, the same agents

    `remuda evaluate treasurehunt 'learners={0: frozen:runs/a/0, 1: frozen:runs/b/1}'`
    """
    if "--deterministic" in (words or ()):
        raise ConfigError("evaluation is greedy by default, so leave --deterministic out; --sampled draws actions")
    if sampled and epsilon:
        raise ConfigError(f"--sampled and --epsilon {epsilon:g} contradict each other: give one of them")
    settings = refuse_arguments(remuda.evaluate, settings_from(words))
    scores = remuda.evaluate(
        target, episodes, None if sampled else epsilon, checkpoint,
        sampled=sampled_group or (), trust=trust, **settings,
    )  # fmt: skip
    if as_json:
        from remuda.runs.directory import to_json

        print(to_json(scores.summary()))
        return
    from remuda.runs.display import fitting_tables

    console = QuietConsole(markup=False)
    for header, *rows in fitting_tables(scores.rows(), console.width, gap=3):
        table = Table(*(Column(name, overflow="fold") for name in header))  # whole names, also on a narrow terminal
        for row in rows:
            table.add_row(*row)
        console.print(table)
    print(scores.headline())


def watch(
    run: Annotated[Path, typer.Argument(help="a run directory")],
    out: Annotated[
        Path | None, typer.Option(help="the file to write: .gif, .mp4 or .webm; default: watch.gif in the run")
    ] = None,
    terminal: Annotated[bool, typer.Option("--terminal", help="play in this terminal instead")] = False,
    episode: Annotated[int, typer.Option(help="which evaluation episode", min=0)] = 0,
    checkpoint: Checkpoint = None,
    size: Annotated[int, typer.Option(help="pixels of the field", min=32, max=4096)] = 480,
    speed: Annotated[float, typer.Option(help="turns per second", min=0.1, max=1000.0)] = 8.0,
    trust: Trust = False,
) -> None:
    """Watch a trained herd play, as a film or in the terminal.

    `remuda watch runs/a --out herd.mp4 --size 720 --speed 12`
    """
    if terminal:
        remuda.watch(run, episode=episode, checkpoint=checkpoint, speed=speed, terminal=True, trust=trust)
    else:
        print(remuda.watch(run, out, episode, checkpoint, size=size, speed=speed, trust=trust))


def record(
    target: Annotated[str, typer.Argument(help="a run directory, or a game whose players learners=… names")],
    words: Words = None,
    out: Annotated[Path, typer.Option(help="the file to write (.npz); must not exist")] = Path("episodes.npz"),
    episodes: Annotated[int, typer.Option(help="how many", min=1)] = 10,
    epsilon: Exploration = 0.0,
    checkpoint: Checkpoint = None,
    trust: Trust = False,
) -> None:
    """Write episodes to a file, turn by turn, for any program that reads numpy's files (docs/recording.md).

    `remuda record runs/a --episodes 100 --out episodes.npz`

    A game is played by random players unless `learners=…` says otherwise.
    """
    settings = refuse_arguments(remuda.record, settings_from(words))
    recorded = remuda.record(target, out, episodes, epsilon, checkpoint, trust=trust, **settings)
    print(f"{out}: {len(recorded.turns)} episodes, {int(recorded.turns.sum())} turns")


def export(
    run: Annotated[Path, typer.Argument(help="a run directory")],
    agent: Annotated[int, typer.Option(help="which agent, by its number in the herd", min=0)] = 0,
    out: Annotated[Path, typer.Option(help="the directory to write; must not exist")] = Path("agent"),
    checkpoint: Checkpoint = None,
    trust: Trust = False,
) -> None:
    """Write a trained agent as weights, a readable torch module and ONNX, all usable without remuda.

    `remuda export runs/a --agent 0 --out agent`
    """
    from remuda.runs.export import onnx_available

    for path in remuda.export(run, agent, out, checkpoint, trust=trust):
        print(path)
    if not onnx_available():
        print("no ONNX file: it needs `pip install 'remuda-rl[export]'`", file=sys.stderr)
