"""Imported by the fork server before any worker is forked: loads all modules and compiles or loads all kernels.

Workers are forked from it and share what it has loaded. (Measured on two cores, 40 workers, Treasurehunt: from their
start to the end of two tasks each 18 s without the warm-up, 1.4 s with it.)
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import shutil
import signal
import sys
import time
from contextlib import redirect_stderr, redirect_stdout, suppress

from remuda.core.game import GameSpec, Group
from remuda.core.plan import Plan
from remuda.core.spaces import space_from_json
from remuda.core.threads import one_thread_each
from remuda.engines.collectors.warm_up import warm_up_without_objects
from remuda.transport.processes import SOCKETS_VARIABLE, WARM_UP_VARIABLE


def _remove_folder_of_dead_parent(server: int, sockets: str) -> None:
    """Remove the folder of our socket, if the first process was killed and cannot do it; see SOCKETS_VARIABLE."""
    parent, _, folder = sockets.partition(" ")
    if os.getpid() != server or not folder:  # a worker inherits what the server does at its exit
        return
    for _ in range(10):  # its pipes are closed a moment before it is gone
        if os.getppid() != int(parent):
            shutil.rmtree(folder, ignore_errors=True)
            return
        time.sleep(0.02)


if WARM_UP_VARIABLE in os.environ:  # in a fork server; anybody else may import this module without effect
    # A signal to the whole process group must not end the fork server: the workers would die with it, and the first
    # process may need them to save.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    atexit.register(_remove_folder_of_dead_parent, os.getpid(), os.environ.pop(SOCKETS_VARIABLE, ""))


silence = io.StringIO()  # finding a user's game may import a program that prints: the run itself prints that, too
with (
    suppress(Exception),  # if the warm-up fails, workers only start slower
    one_thread_each(),
    redirect_stdout(silence),
    redirect_stderr(silence),
):
    request = json.loads(os.environ.pop(WARM_UP_VARIABLE))
    sys.path[:] = request["path"]  # Python 3.11 does not pass it to the fork server
    groups = tuple(
        Group(**{**group, "action_space": space_from_json(group["action_space"])}) for group in request["groups"]
    )
    warm_up_without_objects(Plan(**request["plan"]), GameSpec(request["plan"]["game"], groups, request["turns"]))

gc.collect()

# Else the first garbage collection in a worker writes to every object it shares with the fork server, and so copies
# the pages (measured: 16 MB of a worker's own memory become 76).
gc.freeze()
