"""The command line: its commands, and how it ends."""

from __future__ import annotations

import errno
import io
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

import remuda
from remuda.cli import board, cage2, checking, examples, listing, playing, studies, study, sweep, tournament, training
from remuda.core.errors import RemudaError, StorageError, UsageError

INTERRUPTED = "stopped by Ctrl-C; there was nothing to save"
PLAIN_WORDS = {"valid integer": "a whole number", "valid number": "a number", "valid float": "a number"}
"""What the parser of the command line says about a wrong value of a flag, and what it means for people."""
INSTEAD = {"No such command 'train'": "`remuda train preset=cage2_record` trains a defender; cage2 has the leaderboard"}
"""What the parser says about a command that stands elsewhere, and where it stands."""
_begun: list[str] = []  # the command that was called
ANY_FLAG = {"ignore_unknown_options": True, "allow_interspersed_args": True}
"""For commands that take settings: a flag that the command does not know is read as a setting."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Train herds of independent agents: each its own network, replay buffer and optimiser.",
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"remuda {remuda.__version__}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", help="print the version", is_eager=True, callback=_print_version)]


def _interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """The command, which says so where Ctrl-C ends it; a training that has begun stops by itself, and saves."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        _begun.append(command.__name__)
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt:
            print(INTERRUPTED, file=sys.stderr)
            raise typer.Exit(130) from None

    return run


@app.callback()
def about(version: Version = False) -> None:
    """Train herds of independent agents: each its own network, replay buffer and optimiser."""


for command in (
    training.train, training.resume, study.study, sweep.sweep, tournament.tournament, playing.evaluate, studies.search,
    studies.compare, studies.schelling, playing.watch, board.board, playing.record, playing.export, checking.check,
    checking.verify, checking.replay,
    listing.games, listing.engines, listing.learners, listing.settings, examples.examples,
):  # fmt: skip
    takes_settings = "words" in command.__annotations__
    app.command(context_settings=ANY_FLAG if takes_settings else None)(_interruptible(command))
app.add_typer(cage2.app, name="cage2")


def main() -> None:
    """Run the command line: one clear sentence and exit code 2 for bad input."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a message may have what is no text, or more than the terminal shows
            stream.reconfigure(errors="backslashreplace")
    with suppress(OSError):  # the working directory may have been removed
        sys.path.append(str(Path.cwd()))  # a user's own game may be there
    try:
        code = app(standalone_mode=False)
        if code == 130 and not _begun:  # Ctrl-C while the words were read: typer ends without a word
            print(INTERRUPTED, file=sys.stderr)
    except typer.Abort:
        code = 130
    except typer.TyperException as error:
        if sentence := _usage_sentence(error):  # none where the help was shown instead
            print(f"error: {sentence}", file=sys.stderr)
        code = 2
    except (UsageError, StorageError) as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    except RemudaError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 1
    except OSError as error:
        if error.errno not in (errno.EIO, errno.EPIPE):
            raise
        code = 0  # nobody reads our output any more; everything else is done
    except ValueError as error:
        closed = any(stream is not None and stream.closed for stream in (sys.stdout, sys.stderr))
        if not closed or "closed file" not in str(error):
            raise
        code = 0  # a game has closed our output
    sys.exit(code or 0)


def _usage_sentence(error: Exception) -> str:
    """What the parser of the command line says, with the name of the flag it is about."""
    parameter = getattr(error, "param", None)
    if parameter is not None and type(error).__name__ == "MissingParameter":
        name, about = parameter.opts[0], getattr(parameter, "help", None)
        return f"{name if name.startswith('-') else name.upper()} is missing{f': {about}' if about else ''}"
    said = str(getattr(error, "message", error))
    if instead := next((own for pattern, own in INSTEAD.items() if re.search(pattern, said)), None):
        return instead
    flag = parameter.opts[0] if parameter is not None and parameter.opts else ""
    for pattern, wanted in PLAIN_WORDS.items():
        if flag and re.search(pattern, said):
            return f"{flag} should be {wanted}"
    return f"{flag}: {said}" if flag else said
