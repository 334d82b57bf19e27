"""Starting worker processes, and ending them together with their parent."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from remuda.core.capabilities import has_fork_server, has_parent_death_signal, has_shared_memory
from remuda.core.errors import ConfigError
from remuda.core.machine import folder_for_sockets
from remuda.transport.heartbeat import Limits
from remuda.transport.shared_memory import SharedMemory

EXIT_LIMIT_S = 5.0
"""Longest a worker may take to exit after it was asked to; then it is killed."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
"""Environment of a new fork server: BLAS and numba read these when they load, which is before any worker is forked."""
SOCKET_NAME = "/pymp-12345678/listener-12345678"
"""What multiprocessing's socket is called in the folder for temporary files."""
START_ATTEMPTS = 5
"""Attempts to start a process when the fork server does not answer."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1
PRELOAD = "remuda.engines.collectors.preload"
WARM_UP_VARIABLE = "REMUDA_WARM_UP"
"""The environment variable that tells a new fork server which plan to warm up for."""
SOCKETS_VARIABLE = "REMUDA_SOCKETS"
"""The environment variable that tells a new fork server which folder to remove if the first process is killed.

Its value is that process's number, a space, and the folder. The fork server cannot ask the kernel for the number: it
imports for seconds, and a process that was killed meanwhile is not its parent any more.
"""
UNGUARDED = 113
"""Exit code of a worker that would have started training again while it imported the program that started it."""
_folder_makers: dict[str, int] = {}
"""Which process started the first fork server with its socket in a folder. A forked process inherits the entry."""


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


def process_context() -> Any:
    """The multiprocessing context: a fork server with everything imported where there is one, else spawn."""
    method = "forkserver" if has_fork_server() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload([PRELOAD])
    return context


def processes_forbidden() -> str | None:
    """Why worker processes cannot work here, as far as that is known without starting one; None if they may."""
    if not has_shared_memory():
        return "this system has no shared memory that can be passed on as a descriptor"
    if multiprocessing.current_process().daemon:
        return "this is itself a daemonic process, which may not start others"
    return None


def processes_unavailable(warm_up_request: str = "") -> str | None:
    """Why worker processes cannot work here, found out by starting one that does nothing; None if they can.

    The trial starts the fork server from which all workers will be forked, so it already passes the warm-up request.
    """
    if reason := processes_forbidden():
        return reason
    try:
        SharedMemory(1).close()
        context = process_context()
        process = start_process(
            lambda: context.Process(target=die_with_parent, name="trial", daemon=True), warm_up_request, Limits().start
        )
    except (OSError, EOFError) as error:
        return start_failure(error)
    process.join(Limits().start)
    code = process.exitcode
    if code is None:
        process.kill()
        process.join(EXIT_LIMIT_S)
        return f"a trial process did not end within {Limits().start:.0f} s"
    process.close()
    if code == UNGUARDED:
        raise missing_guard()
    return None if code == 0 else f"a trial process ended with exit code {code}"


def start_failure(error: OSError | EOFError) -> str:
    """What kept a process from starting."""
    if isinstance(error, EOFError):  # the fork server closed its socket instead of answering
        return "the fork server could not start a process, and ended"
    return error.strerror or str(error) or type(error).__name__


def fork_server_environment(warm_up_request: str) -> AbstractContextManager[None]:
    """The environment in which a fork server starts: what to warm up, and the folder of its socket if that is ours.

    multiprocessing hands a process's folder on to its children, so a trial of a study has the folder of the study.
    """
    folder = _folder_of_sockets()
    ours = _folder_makers.setdefault(folder, os.getpid()) == os.getpid() and multiprocessing.parent_process() is None
    sockets = f"{os.getpid()} {folder}" if ours else ""
    return environment_variables({WARM_UP_VARIABLE: warm_up_request, SOCKETS_VARIABLE: sockets, **ONE_THREAD})


def _folder_of_sockets() -> str:
    """The folder in which multiprocessing makes its sockets; where the usual one has too long a name, another one."""
    usual, short = tempfile.tempdir, folder_for_sockets(SOCKET_NAME)
    try:
        tempfile.tempdir = short or usual  # read only when the folder is made, which is once for a process
        return util.get_temp_dir()
    finally:
        tempfile.tempdir = usual


@contextmanager
def environment_variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, and put the old values back afterwards."""
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


def start_process(make: Callable[[], BaseProcess], warm_up_request: str, limit_s: float) -> BaseProcess:
    """Start a process that `make` returns.

    A fork server that was just killed refuses connections for a moment before the kernel reports it dead; only then
    does multiprocessing start another one. So a refusal is tried again.
    """
    for attempt in range(START_ATTEMPTS):
        process = make()
        try:
            # Any start may be the one that starts a fork server, which then needs this environment.
            with (
                fork_server_environment(warm_up_request),
                main_without_file_hidden(),
                _fork_server_killed_after(limit_s),
                _stop_signals_held(),
            ):
                process.start()
        except (ConnectionError, EOFError):
            if attempt == START_ATTEMPTS - 1:
                raise
            time.sleep(0.1)
        else:
            break
    return process


def kill_fork_server() -> None:
    """Kill a fork server that does not answer (it may be stopped): its workers end with it, and all are replaced."""
    server: int | None = getattr(forkserver._forkserver, "_forkserver_pid", None)
    if server is not None:
        with suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)


@contextmanager
def _fork_server_killed_after(seconds: float) -> Iterator[None]:
    """Start a process: multiprocessing waits without end for a fork server that does not answer."""
    timer = threading.Timer(seconds, kill_fork_server)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _stop_signals_held() -> Iterator[None]:
    """Start a process in which stop signals wait until it asks for them, see `answer_stop_signals`.

    A terminal sends Ctrl-C to all processes at once, also to a fork server that is still importing and to a worker that
    has no handlers yet: they would die, the former with a traceback. Signals to this process come a moment later.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # else the fork server's start does it, which ends with signals let through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def answer_stop_signals(handler: Any) -> None:
    """Set the handler of stop signals in a process that `start_process` started, and let them arrive."""
    for number in STOP_SIGNALS:
        signal.signal(number, handler)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def await_end(process: BaseProcess, timeout_s: float = EXIT_LIMIT_S) -> None:
    """Wait for a process to end; kill it if it does not, then the fork server, which should have reported the end."""
    process.join(timeout_s)
    for kill in (process.kill, kill_fork_server):
        if process.exitcode is None:
            kill()
            process.join(EXIT_LIMIT_S)


def signal_name(number: int) -> str:
    """A signal's name; real-time signals have only a number."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _close_fork_server_pipe() -> None:
    """Close our copy of the pipe whose other end the fork server watches.

    The fork server ends when the last writer of this pipe is gone. Every worker inherits a copy. While a worker holds
    it, the death of the first process would not end the fork server, and so (see `die_with_parent`) not the worker.
    """
    descriptor = getattr(forkserver._forkserver, "_forkserver_alive_fd", None)
    if descriptor is not None:
        os.close(descriptor)
        forkserver._forkserver._forkserver_alive_fd = None  # type: ignore[attr-defined]


def die_with_parent() -> None:
    """Have this process end when its parent dies, in whatever way that happens.

    To the kernel, the parent is the process that forked us: the fork server, which itself ends with the first process.
    """
    _close_fork_server_pipe()
    if not has_parent_death_signal():
        threading.Thread(target=_end_with_parent, name="parent watch", daemon=True).start()
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:  # the parent died before prctl, so the kernel will not signal its death any more
        os._exit(1)


def _end_with_parent() -> None:
    """End this process when the pipe that multiprocessing's parent holds is closed, which its death does."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
