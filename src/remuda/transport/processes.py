"""Starting worker processes, and having them end with their parent."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from remuda.core.errors import ConfigError
from remuda.transport.heartbeat import Limits
from remuda.transport.shared_memory import SharedMemory

END_LIMIT_S = 5.0
"""Longest a worker may take to end after being told; then it is killed."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
"""What a fork server is told when it starts: every worker has one thread, whoever multiplies."""
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1
PRELOAD = "remuda.engines.collectors.preload"
WARM_UP_VARIABLE = "REMUDA_REHEARSE"
"""The environment variable that tells a new fork server which plan to rehearse."""


UNGUARDED = 113
"""Exit code of a worker that would have started training again while it imported the program that started it."""


def refuse_inside_workers() -> None:
    """End this process if it is a worker that is still importing the program that started it.

    The worker says nothing, since there may be hundreds of them: its parent raises `missing_guard` when it sees the
    exit code. Buffered output of the program is dropped with it.
    """
    process = multiprocessing.current_process()
    if process.name != "MainProcess" and getattr(process, "_inheriting", False):
        os._exit(UNGUARDED)


def missing_guard() -> ConfigError:
    """The error for a program that starts training whenever it is imported."""
    return ConfigError(
        "worker processes import the program that started them, and this one starts training when it is imported: "
        'put the call under `if __name__ == "__main__":`'
    )


def process_context() -> Any:
    """How processes are started: from a fork server that has everything imported, else from nothing."""
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload([PRELOAD])
    return context


def processes_forbidden() -> str | None:
    """Why no worker process can be had here, as far as that is known without trying."""
    if not hasattr(os, "memfd_create"):
        return "this system has no nameless shared memory (memfd_create)"
    if multiprocessing.current_process().daemon:
        return "this is itself a daemonic process, which may not start others"
    return None


def processes_unavailable(rehearsal: str = "") -> str | None:
    """Why no worker process can be had here, if so; found out by starting one that does nothing.

    That starts the fork server all workers will come from, so it rehearses the plan here.
    """
    if reason := processes_forbidden():
        return reason
    try:
        SharedMemory(1).close()
        process = process_context().Process(target=die_with_parent, name="trial", daemon=True)
        with environment({WARM_UP_VARIABLE: rehearsal, **ONE_THREAD}), main_without_file_hidden():
            process.start()
    except (OSError, EOFError) as error:
        return start_failure(error)
    process.join(Limits().start)
    code = process.exitcode
    if code is None:
        process.kill()
        process.join(END_LIMIT_S)
        return f"a trial process did not end within {Limits().start:.0f} s"
    process.close()
    if code == UNGUARDED:
        raise missing_guard()
    return None if code == 0 else f"a trial process ended with exit code {code}"


def start_failure(error: OSError | EOFError) -> str:
    """What kept a process from starting."""
    if isinstance(error, EOFError):
        return "the fork server could not start a process, and ended"
    return error.strerror or str(error) or type(error).__name__


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Have these variables in the environment for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def main_without_file_hidden() -> Iterator[None]:
    """Start a process from `python - < program`: its `__main__` claims a file `<stdin>` that no worker could import."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if file is None or getattr(main, "__spec__", None) is not None or Path(file).exists():
        yield
        return
    del main.__file__
    try:
        yield
    finally:
        main.__file__ = file


def signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _let_the_fork_server_go() -> None:
    """Close our end of the pipe that keeps it alive: it must end with the first process, and we with it."""
    alive = getattr(forkserver._forkserver, "_forkserver_alive_fd", None)
    if alive is not None:
        os.close(alive)
        forkserver._forkserver._forkserver_alive_fd = None  # type: ignore[attr-defined]


def die_with_parent() -> None:
    """Have the kernel kill us when the process we were forked from dies, however it dies."""
    if sys.platform == "linux":
        _let_the_fork_server_go()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == 1:
            os._exit(1)  # it died before we could ask
