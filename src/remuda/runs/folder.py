"""Run directories: choosing a free one, and holding it while a run is trained."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from socket import gethostname
from typing import TextIO

from remuda.core.errors import ConfigError, RunError
from remuda.core.options import short_repr
from remuda.core.plan import Plan
from remuda.core.yamlfile import read_yaml, write_yaml
from remuda.runs import checkpoint, trust
from remuda.runs.directory import CONFIG
from remuda.runs.storage import error_reason, shown, storage_errors

LOCK = ".lock"
RUNS = Path("runs")
MAX_NAME_BYTES = 255
"""Of a name in a directory, on the file systems in use."""
MAX_GAME_NAME = 100
"""Characters of the game in the name of a directory."""


def new_folder(here: Path, out: Path | str | None, plan: Plan) -> Path:
    """The directory asked for if it is free, else the next number under runs/, which is made at once; both in `here`.

    Making it is what reserves it: two processes that start at the same time get two numbers.
    """
    if out is not None:
        if not isinstance(out, str | os.PathLike):
            raise RunError(f"out={out!r} should be the path of a directory")
        _check_place(here / out)
        return free_folder(here / out)
    _check_place(here)
    name = re.sub(r"[^\w-]", "-", plan.game)[:MAX_GAME_NAME]
    runs = here / RUNS
    taken = [int(path.name[-3:]) for path in runs.glob(f"{name}-[0-9][0-9][0-9]")]
    for number in count(max(taken, default=0) + 1):
        folder = runs / f"{name}-{number:03d}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise RunError(f"{folder} cannot be written: {error.strerror}") from None
        return folder
    raise AssertionError("count() ends never")


def _check_place(folder: Path) -> None:
    """Refuse a path that is relative to a working directory that was removed."""
    if not folder.is_absolute():
        raise RunError("the working directory was removed: change to one that exists, or give --out from the root")


def check_writable(folder: Path) -> None:
    """Refuse a directory that cannot be made, before a plan is measured for it."""
    above = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), Path("/"))
    if not above.is_dir() or not os.access(above, os.W_OK):
        reason = os.strerror(errno.EACCES if above.is_dir() else errno.ENOTDIR)
        raise RunError(f"{short_repr(str(folder))} cannot be written: {reason}")


def free_folder(folder: Path) -> Path:
    """The directory, if there is nothing in it yet."""
    if problem := _unusable(str(folder)):
        raise RunError(f"{short_repr(str(folder))} cannot be a directory: {problem}")
    try:
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except (OSError, ValueError) as error:  # a name that is too long, or has a NUL in it
        raise RunError(f"{short_repr(str(folder))} cannot be a directory: {error_reason(error)}") from None
    if taken:
        raise RunError(f"{shown(folder)} exists already: choose another --out, or `remuda resume {shown(folder)}`")
    return folder


def _unusable(path: str) -> str:
    """What is wrong with the text of a path, apart from what is there; TensorBoard's files need UTF-8."""
    try:
        parts = path.encode("utf-8").split(b"/")
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    if b"\0" in path.encode():
        return "its name has a NUL in it"
    return f"a name in it has more than {MAX_NAME_BYTES} bytes" if max(map(len, parts)) > MAX_NAME_BYTES else ""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the run directory, so that no other process trains the same run.

    Meanwhile the file names this machine: another one that sees the folder does not see the lock.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("a")
    except (OSError, ValueError) as error:
        raise RunError(f"{short_repr(str(folder))} cannot be written: {error_reason(error)}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(f"{folder} is being trained by another process") from None
        _write_name(file, gethostname())
        try:
            yield
        finally:
            _write_name(file, "")


def refuse_if_locked(folder: Path) -> None:
    """Raise if a process trains the run: what one reads of it meanwhile may be gone a moment later."""
    with suppress(OSError), (folder / LOCK).open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"{folder} is being trained by another process") from None


def is_held(folder: Path) -> bool:
    """Whether a process of this machine trains the run, or one of another machine does or died of it."""
    try:
        with (folder / LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return file.read() not in ("", gethostname())
    except BlockingIOError:
        return True
    except OSError:  # there is no run yet
        return False


def _write_name(file: TextIO, name: str) -> None:
    with suppress(OSError):  # a full disk
        file.truncate(0)
        file.write(name)
        file.flush()


def prepare(folder: Path, plan: Plan, is_new: bool) -> None:
    """Write the plan. Where a run goes on, put back checkpoints that a process that died was replacing."""
    with storage_errors(folder):
        if not is_new:
            checkpoint.recover(folder)
            checkpoint.recover(folder / checkpoint.CHECKPOINTS)
            trust.sign(folder, read_yaml(folder / CONFIG))  # it was trusted, or there would be no plan
        elif {path.name for path in folder.iterdir()} - {LOCK}:
            raise RunError(f"{shown(folder)} exists already: choose another --out, or `remuda resume {shown(folder)}`")
        else:
            write_config(folder, plan)


def write_config(folder: Path, plan: Plan) -> None:
    """Replace config.yaml at once: a process that dies meanwhile leaves the old one or the new one."""
    draft = folder / f".{CONFIG}.draft"
    write_yaml(draft, plan)
    trust.sign(folder, read_yaml(draft))
    draft.replace(folder / CONFIG)


@contextmanager
def emptied_if_refused(folder: Path) -> Iterator[None]:
    """Remove what was written for a run that could not be started; only whoever holds the directory may do that."""
    try:
        yield
    except BaseException as error:
        with suppress(OSError):
            if not (folder / CONFIG).exists():
                (folder / LOCK).unlink(missing_ok=True)
            elif isinstance(error, ConfigError) and not any((folder / checkpoint.CHECKPOINTS).glob("*")):
                for path in folder.iterdir():
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        raise


@contextmanager
def removed_if_refused(folder: Path) -> Iterator[None]:
    """Remove the directory of a run that could not be started, if nothing is in it: another process may have it."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            folder.rmdir()  # fails if it is not empty
            if folder.parent.name == RUNS.name:
                folder.parent.rmdir()
        raise


def remove_later_checkpoints(path: Path) -> None:
    """Remove checkpoints newer than the one a run goes on from: training will write others."""
    for other in checkpoint.every(path.parent):
        if int(other.name) > int(path.name):
            checkpoint.remove(other)
