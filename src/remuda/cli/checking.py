"""Commands that check: check, verify and replay."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import remuda
from remuda.cli.words import Trust, Words, refuse_arguments, settings_from
from remuda.core.errors import RunError


def check(
    target: Annotated[str, typer.Argument(help="a game or a learner: its name, or module:name of your own")],
    words: Words = None,
) -> None:
    """Run the conformance suite on a game or a learner; says what each finding means for training."""
    findings = remuda.check(target, **refuse_arguments(remuda.check, settings_from(words)))
    for finding in findings:
        note = f" ({finding.note})" if finding.note else ""
        mark = "FAIL" if not finding.good else "note" if finding.note else "ok  "
        print(f"{mark} {finding.promise}{note}")
        if not finding.good:
            print(f"     {finding.problem}\n     for training this means: {finding.meaning}")
    if not all(finding.good for finding in findings):
        raise typer.Exit(1)


def verify(
    game: Annotated[str, typer.Argument(help="a game with recordings of its original: cage2, cleanup, coins, harvest")],
    folder: Annotated[Path, typer.Argument(help="where the recordings (.npz) are, at any depth")],
) -> None:
    """Replay recorded games of the original through our rules; exit code 1 if anything differs."""
    report = remuda.verify(game, folder)
    print(report)
    if not report.good:
        raise typer.Exit(1)


def replay(
    run: Annotated[Path, typer.Argument(help="a run directory")],
    failure: Annotated[int | None, typer.Option(help="the number of an episode that failed", min=1)] = None,
    debug: Annotated[bool, typer.Option("--debug", help="open the debugger where the failure is raised")] = False,
    trust: Trust = False,
) -> None:
    """Play a run or one of its failures once more, in one process.

    A finished actor-learner run with log_schedule=true is played and learned again; exit code 1 if other
    weights come out.

    `--failure K` plays the episodes of failure K with the same random numbers and the same actions; exit code 1 if
    nothing is raised this time.
    """
    if failure is not None:
        _replay_failure(run, failure, debug, trust)
        return
    opened = remuda.load(run)
    if not opened.finished:
        raise RunError(f"{run} is not finished: `remuda resume {run}` first")
    again, then = remuda.replay(run, trust), opened.result["weights_sha256"]
    print(f"the run ended with weights {then}\nthe replay ended with  {again}")
    if again != then:
        raise typer.Exit(1)


def _replay_failure(run: Path, number: int, debug: bool, trust: bool) -> None:
    from remuda.core.failures import format_traceback

    record, error = remuda.replay_failure(run, number, trust)
    print(f"failure {number}, {record.task}, turn {record.turn}, seed {record.seed}, then: {record.message}")
    if error is None:
        print(f"played again up to turn {record.turn}: nothing was raised")
        raise typer.Exit(1)
    print(f"played again: {error}\n{format_traceback(error.__cause__ or error)}")
    if debug:
        import pdb

        pdb.post_mortem((error.__cause__ or error).__traceback__)
