"""What the callbacks for experiment trackers share.

A tracker is a service outside the run. Its network or its disk may fail, and a call may take minutes to return. So
every call is made in a background thread, the first error is reported to the logger "remuda", and no error reaches the
run. The tables in the run directory have the same numbers in any case.
"""

from __future__ import annotations

import json
import logging
import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ClassVar

from remuda.core.errors import ConfigError, first_line
from remuda.runs.callbacks.base import Callback, Row, Training
from remuda.runs.callbacks.tables import KEYS

LOGGER = logging.getLogger("remuda")
MAX_WAITING = 2000
"""Calls that may wait for a tracker that is slow or does not answer; further ones are dropped."""
END_LIMIT_S = 30.0
"""Longest the end of a run waits for its tracker."""
MAX_ID_BYTES = 10_000


class BackgroundCalls:
    """Makes calls one after the other in a thread. Giving it a call never waits and never raises."""

    def __init__(self, name: str, report: Callable[[str], None]) -> None:
        self._report = report
        self._waiting: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # A daemon: Python does not wait for it when the process ends, so a dead network cannot hold up the exit.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], None]) -> None:
        """Have this called after all calls before it, unless too many are waiting."""
        if self._waiting.qsize() < MAX_WAITING:
            self._waiting.put(call)
        else:
            self._report("it is too slow for this run, so some rounds are not logged")

    def close(self, last: Callable[[], None]) -> None:
        """Make one last call, and wait for all of them, but no longer than END_LIMIT_S."""
        self._waiting.put(last)
        self._waiting.put(None)
        self._thread.join(END_LIMIT_S)
        if self._thread.is_alive():
            self._report(f"it did not finish within {END_LIMIT_S:.0f} s, so the end of the run may be missing")

    def _work(self) -> None:
        for call in iter(self._waiting.get, None):
            try:
                call()
            except (Exception, SystemExit) as error:  # wandb calls sys.exit when its service process failed
                self._report(first_line(error))


class Tracker(Callback):
    """Logs a run to an experiment tracker: its config, metrics, failures and result, against episodes.

    A subclass says how, in four methods that are called in one background thread. A run that goes on continues the
    tracker's own run: its id is kept in a file of the run directory. Rounds that are trained again are logged again.
    """

    package: ClassVar[str]  # the name to import, which is also the name of the callback
    title: ClassVar[str]
    id_pattern: ClassVar[str]  # what an id may look like; the file may come from somebody else

    def __init__(self) -> None:
        self._calls: BackgroundCalls | None = None
        self._opened = self._reported = False

    def open(self, module: Any, training: Training, run_id: str | None) -> str:
        """Start the tracker's run, or continue the one with this id, log the config, and return the id."""
        raise NotImplementedError

    def log(self, values: Mapping[str, float], episodes: int) -> None:
        """Log values by name; `episodes` is the step."""
        raise NotImplementedError

    def alert(self, message: str) -> None:
        """Log a failure."""
        raise NotImplementedError

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """Log the result and close everything; called also where `open` failed."""
        raise NotImplementedError

    def start(self, training: Training) -> None:
        """Import the package, and open the tracker in the background."""
        module = self._import()
        self._opened = self._reported = False
        self._calls = BackgroundCalls(self.package, self.report)
        self._calls.submit(lambda: self._open(module, training))

    def learned(self, training: Training, rows: Sequence[Row], system: Row) -> None:
        """Log the round."""
        values = {f"system/{name}": float(value) for name, value in system.items() if name != "episodes"}
        values["system/agent_steps"] = float(rows[0]["agent_steps"])
        self._log({**by_agent_and_mean("train", rows), **values}, int(system["episodes"]))

    def evaluated(self, training: Training, rows: Sequence[Row], scores: Row) -> None:
        """Log the evaluation."""
        values = {f"evaluate/{name}": float(value) for name, value in scores.items() if isinstance(value, int | float)}
        self._log({**by_agent_and_mean("evaluate", rows), **values}, int(rows[0]["episodes"]))

    def failed(self, training: Training, message: str) -> None:
        """Log the failure."""
        self._submit(lambda: self.alert(message))

    def end(self, training: Training, result: Mapping[str, Any] | None) -> None:
        """Log the result, and wait a while until everything is logged."""
        calls, self._calls = self._calls, None
        if calls is not None:
            calls.close(lambda: self.finish(result))

    def report(self, text: str) -> None:
        """Say what is wrong with the tracker, the first time only."""
        if not self._reported:
            self._reported = True
            LOGGER.warning("%s: %s (the run goes on)", self.title, text)

    def _import(self) -> Any:
        try:
            return import_module(self.package)
        except ModuleNotFoundError as error:
            if error.name != self.package:
                raise ConfigError(f"callbacks=[{self.package}]: {self.title} cannot be imported: {error}") from error
            raise ConfigError(
                f"callbacks=[{self.package}] needs {self.title}: pip install 'remuda-rl[{self.package}]'"
            ) from None
        except Exception as error:  # an installed package that does not fit the others may raise anything
            raise ConfigError(
                f"callbacks=[{self.package}]: {self.title} cannot be imported: {first_line(error)}"
            ) from error

    def _open(self, module: Any, training: Training) -> None:
        path = training.path / f"{self.package}.json"
        before = read_id(path, self.id_pattern)
        run_id = self.open(module, training, before)
        self._opened = True
        if run_id != before:
            write_id(path, run_id)

    def _submit(self, call: Callable[[], None]) -> None:
        if self._calls is not None:
            self._calls.submit(lambda: call() if self._opened else None)

    def _log(self, values: Mapping[str, float], episodes: int) -> None:
        known = {name: value for name, value in values.items() if not math.isnan(value)}
        self._submit(lambda: self.log(known, episodes))


def by_agent_and_mean(kind: str, rows: Sequence[Row]) -> dict[str, float]:
    """Each metric per agent (`train/return/foragers0`) and its mean over the herd (`train/return/mean`)."""
    values: dict[str, float] = {}
    of_herd: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            if name not in KEYS and not math.isnan(value):
                values[f"{kind}/{name}/{row['group']}{row['agent']}"] = float(value)
                of_herd.setdefault(name, []).append(float(value))
    return {**values, **{f"{kind}/{name}/mean": sum(own) / len(own) for name, own in of_herd.items()}}


def flat(values: Mapping[str, Any], separator: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The entries of nested mappings, each with the names on the way to it."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, separator, f"{prefix}{name}{separator}")
        else:
            yield f"{prefix}{name}", value


def read_id(path: Path, pattern: str) -> str | None:
    """The id in the file, if there is one and it looks like one."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(MAX_ID_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    run_id = found.get("id") if isinstance(found, dict) else None
    return run_id if isinstance(run_id, str) and re.fullmatch(pattern, run_id) else None


def write_id(path: Path, run_id: str) -> None:
    """Write the id; a process that dies meanwhile leaves the old file or the new one."""
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps({"id": run_id}), encoding="utf-8")
    draft.replace(path)
