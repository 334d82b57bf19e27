"""A training to be disturbed: in a process of its own, as slow as one likes, with everybody who belongs to it."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import proc
from remuda.core.capabilities import has_fork_server

HERE = Path(__file__).parent
PATIENCE_S = 120.0  # for a process to get going; with everything else on the machine running too
END_S = 30.0  # for everything to be gone
EPISODES = 160
PLAN: dict[str, Any] = {
    "agents": 2, "turns": 12, "worlds": 4, "total_episodes": EPISODES, "n_workers": 2,
    "layer": 16, "quantiles": 4, "acting_quantiles": 4, "frames": 2, "batch_size": 8, "replay_size": 256,
    "evaluate_episodes": 4, "checkpoint_every": 4, "keep_checkpoints": 3, "device": "cpu", "pictures": False,
}  # fmt: skip


def _take_terminal() -> None:
    """Be who is hung up on when it is closed, also if the tests themselves run under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Training:
    """`remuda train` as a process of its own that trains slowly, and everybody who belongs to it."""

    def __init__(self, folder: Path, terminal: int | None = None, **changes: Any) -> None:
        self.out, self.brake, self._err = folder / "run", folder / "brake", folder / "stderr"
        self.brake.touch()
        settings = {**PLAN, "brake": self.brake, **changes}
        words = [f"{name}={value}" for name, value in settings.items()]
        command = [sys.executable, "-W", "error", "-m", "remuda", "train", "fault_games:FAULTY", *words]
        paths = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        with self._err.open("w") as err:
            self.process = subprocess.Popen(
                [*command, "--out", str(self.out)],
                env={**os.environ, "PYTHONPATH": paths},
                stdin=terminal,
                stdout=subprocess.DEVNULL,
                stderr=err if terminal is None else terminal,
                start_new_session=True,
                preexec_fn=None if terminal is None else _take_terminal,
            )
        self.others: set[proc.Process] = set()
        self.memories: set[proc.Inode] = set()

    @property
    def err(self) -> str:
        return self._err.read_text()

    @property
    def rounds(self) -> int:
        """Rounds in the CSV files so far."""
        path = self.out / "metrics.csv"
        return (len(path.read_text().splitlines()) - 1) // 2 if path.exists() else 0

    @property
    def saved(self) -> list[int]:
        """Episodes of every checkpoint, in order."""
        return sorted(int(path.name) for path in (self.out / "checkpoints").glob("[0-9]*"))

    def wait(self, what: Callable[[], bool]) -> None:
        """Until it is so, as long as it runs."""

        def so_or_ended() -> bool:
            return what() or self.process.poll() is not None

        proc.wait(so_or_ended, PATIENCE_S, lambda: f"still waiting; it said: {self.err}")
        assert self.process.poll() is None, f"ended early: {self.err}"

    def know_everybody(self) -> None:
        """Remember who has to be gone in the end, and what memory."""
        now = proc.descendants(self.process.pid)
        assert len(now) >= 3 + has_fork_server(), "a resource tracker, two workers, and the server they are forked from"
        self.others |= now
        self.memories |= {inode for one in now for inode in proc.memories(one.pid)}
        assert self.memories
        assert self.memories <= proc.memories(self.process.pid)

    def left(self) -> list[str]:
        """Who of them still runs."""
        return [f"{one.pid} {one.command}" for one in self.others if one.alive]

    def assert_nothing_is_left(self) -> None:
        assert self.others, "know_everybody() first"
        proc.wait(lambda: not self.left(), END_S, lambda: f"left behind: {self.left()}")
        assert not proc.holders(self.memories)

    def end(self) -> None:
        """Whatever the test came to: nobody survives it."""
        for one in {*self.others, *proc.descendants(self.process.pid)}:
            if one.alive:
                os.kill(one.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
