"""Imported by the fork server before any worker: has everything loaded and every kernel at hand.

Workers are forked from it, so they share what it has. (Measured on two cores, 40 workers, Treasurehunt:
from their start to the end of two tasks each 18 s without the rehearsal, 1.4 s with it.)
"""

from __future__ import annotations

import gc
import io
import json
import os
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout, suppress

from remuda.core.game import GameSpec, Group
from remuda.core.plan import Plan
from remuda.core.threads import one_thread_each
from remuda.engines.collectors.warm_up import warm_up_without_objects
from remuda.transport.processes import WARM_UP_VARIABLE

if WARM_UP_VARIABLE in os.environ:  # in a fork server, not in somebody who only looks at us
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # told to everybody, it must not take the workers with it


silence = io.StringIO()  # finding a user's game may import a program that prints: the run itself prints that too
with (
    suppress(Exception),  # a warm-up that fails only makes the workers start slower
    one_thread_each(),
    redirect_stdout(silence),
    redirect_stderr(silence),
):
    script = json.loads(os.environ.pop(WARM_UP_VARIABLE))
    sys.path[:] = script["path"]  # Python 3.11 does not tell the fork server
    groups = tuple(Group(**{**group, "obs_shape": tuple(group["obs_shape"])}) for group in script["groups"])
    warm_up_without_objects(Plan(**script["plan"]), GameSpec(script["plan"]["game"], groups, script["turns"]))

gc.collect()

gc.freeze()  # else the first collection in a worker writes to all it shares (measured: 16 MB of its own become 76)
