"""One run of the soak test: trained to its end through faults, signals, full disks and changes of engine."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import remuda
from benchmarks.soak_readers import Readers
from benchmarks.soak_tally import Tally
from remuda.core.machine import process_tree, tree_bytes

HERE = Path(__file__).parent
FAULT_TESTS = HERE.parent / "tests" / "promises" / "faults"
LOOK_S, LEFT_S, SAMPLE_S = 0.1, 60.0, 1.0
FAULTS_S = 75.0
"""So long a run is disturbed; then it is left to come to its end."""
EVENT_S = 7.0
"""Something happens to the first process, its disk or its workers about this often, once it learns."""
HANGS_S = 300.0
"""Longer than any start takes, faults included."""
EPISODES = 2400
PLAN: dict[str, Any] = {
    "turns": 12, "worlds": 4, "total_episodes": EPISODES, "n_workers": 2, "agents": 2, "evaluate_episodes": 4,
    "checkpoint_every": 40, "keep_checkpoints": 3, "device": "cpu", "pictures": "false", "max_failures": 1.0,
    "turn_limit_s": 4, "update_limit_s": 4,
}  # fmt: skip
UNHURRIED = {"turn_limit_s": 600, "update_limit_s": 600}
GAMES = ("soak_games:CHAOTIC", "soak_games:cartpole")
LEARNERS: dict[str, dict[str, Any]] = {
    "iqn": {"layer": 16, "quantiles": 4, "acting_quantiles": 4, "batch_size": 8, "replay_size": 256, "frames": 2},
    "ppo": {"layers": "[8]", "minibatches": 2, "passes": 2, "frames": 2},
}
RAY, RAY_LEARNERS = ("--engine", "ray"), ("--engine", "ray", "--n-learners", "2")
BY_ROUND = (
    *(("--engine", name) for name in ("sequential", "vectorized", "threads", "sync", "executor", "executor")),
    RAY, RAY_LEARNERS,
)  # fmt: skip
"""Engines that give the same weights, to the bit, also one after another."""
FREE = (("--engine", "threads"), ("--engine", "executor"), ("--engine", "actor-learner"), RAY)
CALM = (("--engine", "vectorized"), ("--engine", "executor"))
"""Engines that start quickly, for a run that is to come to its end."""
PHASES = dict.fromkeys(("collect", "hand-over", "update", "publish", "save"), 1000)
GENTLE = [f"{role}-{kind}" for role in ("main", "worker") for kind in ("raise", "exit", "slow")]
ROUGH = [*GENTLE, *(f"{role}-{kind}" for role in ("main", "worker") for kind in ("kill", "stop"))]
STEADY = [*GENTLE, "worker-kill", "worker-stop"]
"""What may happen in a run whose first process lives on, so that its memory can be measured."""
WISHES = {
    "phases": PHASES, "every_s": 0.4, "after_s": {"main-kill": 14.0, "main-stop": 8.0},
    "spacing_s": {"raise": 1.5, "exit": 1.5, "kill": 1.5, "stop": 7.0},
}  # fmt: skip
"""When: see `chaos.Chaos.choose`. A worker that stops is missed after `turn_limit_s`, and then its episodes are played
again: another fault in the same ones would soon set them aside."""
SIGNALS = {"terminate": signal.SIGTERM, "interrupt": signal.SIGINT, "hang up": signal.SIGHUP, "kill": signal.SIGKILL}
HARMLESS = ("fill the disk", "stop everybody for a while", "kill the fork server", "kill every worker")
EVENTS = (*SIGNALS, "terminate twice", *HARMLESS, *HARMLESS)
FULL = ("the disk is full", "No space left")


@dataclass
class SoakRun:
    """One run, in a folder of its own with a disk that may be filled; over by `end` (of the monotonic clock)."""

    folder: Path
    disk: Path
    tally: Tally
    dice: random.Random
    end: float
    board: str  # its address
    everybody: set[int] = field(default_factory=set)
    samples: list[tuple[float, int, int]] = field(default_factory=list)  # seconds, bytes, descriptors
    is_damaged: bool = False  # whether rows of its tables were lost on purpose
    is_cut_off: bool = False

    def __post_init__(self) -> None:
        self.out = self.disk / "run"
        self.temporary = Path(tempfile.mkdtemp(prefix="sk-"))  # Ray's sockets lie there: their paths must be short
        self.game, self.learner = self.dice.choice(GAMES), self.dice.choice([*LEARNERS])
        self.is_steady = self.dice.random() < 0.25
        self.by_round = self.dice.random() < 0.7
        self.lag = self.dice.choice([0, 0, 1]) if self.by_round else 0
        wishes = {**WISHES, "kinds": STEADY if self.is_steady else ROUGH}
        (self.folder / "wishes.json").write_text(json.dumps(wishes))

    @property
    def name(self) -> str:
        """What it computes, in a few words."""
        return f"{self.game} {self.learner} {'by round' if self.by_round else 'free'} lag {self.lag}"

    def run(self) -> None:
        """Start it until it is finished, then look at what came out."""
        sys.path[:0] = [str(FAULT_TESTS), str(HERE)]  # where its game and the hook are
        try:
            self._run()
        except Exception as error:  # the next runs of the part are not affected
            self.tally.problem(f"{self.name}: {type(error).__name__} {error}")
        finally:
            del sys.path[:2]
            shutil.rmtree(self.temporary, ignore_errors=True)

    def _run(self) -> None:
        reference = self._reference()
        self.calm_at = time.monotonic() + FAULTS_S
        segments = set(Path("/dev/shm").iterdir())
        with Readers(self.out, self.tally, self.board).beside():
            while not self._live_once():
                pass
        self._look_for_segments(segments)
        self._count_faults()
        if self.is_cut_off:
            self.tally.counts["runs cut off by the end of a part"] += 1
        else:
            self._check(reference)
        self._keep_memory()

    def _live_once(self) -> bool:
        """Start it; whether it is over."""
        words = self._words()
        self.tally.counts["starts"] += 1
        code = self._live(words)
        self.tally.counts[f"exit code {code}"] += 1
        self._look_for_what_is_left()
        wanted = {-signal.SIGKILL, *(128 + number for number in SIGNALS.values())}
        is_full = code == 2 and any(text in self._said() for text in FULL)
        if is_full:
            self.tally.counts["starts that ended with one sentence because the disk was full"] += 1
        if code not in wanted and not is_full and code != 0 and not self.is_cut_off:
            self.tally.problem(f"{self.name}, {' '.join(words[:6])}: exit code {code}: {self._said()}")
        if self.is_cut_off or ((self.out / "config.yaml").exists() and remuda.Run(self.out).finished):
            return True
        self._perhaps_damage_a_table()
        return False

    @property
    def is_calm(self) -> bool:
        """Whether nothing is to happen any more."""
        return time.monotonic() > min(self.calm_at, self.end - FAULTS_S)

    def _words(self) -> list[str]:
        engine = self.dice.choice(CALM if self.is_calm else BY_ROUND if self.by_round else FREE)
        self.tally.counts[f"starts with {' '.join(engine).replace('--', '')}"] += 1
        if (self.out / "config.yaml").exists():
            return ["resume", str(self.out), *engine]
        shutil.rmtree(self.out, ignore_errors=True)
        settings = [f"{name}={value}" for name, value in self._plan().items()]
        return ["train", self.game, *settings, *(word for word in engine if word != "--n-learners" and word != "2"),
                *(["n_learners=2"] if engine == RAY_LEARNERS else []), "--out", str(self.out)]  # fmt: skip

    def _plan(self) -> dict[str, Any]:
        deterministic = {"deterministic": "true", "lag": self.lag} if self.by_round else {}
        return {**PLAN, "learner": self.learner, **LEARNERS[self.learner], **deterministic}

    def _live(self, words: list[str]) -> int:
        """Until the first process ends."""
        environment = {**os.environ, "REMUDA_CHAOS": str(self.folder), "TMPDIR": str(self.temporary)}
        environment["PYTHONPATH"] = _paths()
        if self.dice.random() < 0.5:
            environment["SOAK_CLOCK"] = "1"
            self.tally.counts["starts with a clock that jumps"] += 1
        unread = self.dice.random() < 0.15
        self.tally.counts["starts whose output nobody reads"] += unread
        (self.folder / "stderr").write_text("")
        reader, writer = os.pipe()
        with (self.folder / "stderr").open("w") as err, os.fdopen(writer, "w") as pipe:
            process = subprocess.Popen(
                [sys.executable, "-m", "remuda", *words], env=environment, stdout=subprocess.DEVNULL,
                stderr=pipe if unread else err, start_new_session=True,
            )  # fmt: skip
        os.close(reader)
        try:
            self._watch(process)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGCONT)
            process.kill()
            process.wait()
        return process.returncode

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Until it ends: wake it when it is stopped, let something happen once it learns, look at its memory."""
        began, learned = time.monotonic(), self._rounds()
        next_event = next_sample = float("inf")
        while process.poll() is None:
            now = time.monotonic()
            if next_event == float("inf") and self._rounds() != learned:
                next_event, next_sample = now + self.dice.expovariate(1 / EVENT_S), now
            self.everybody |= set(process_tree(process.pid)) - {process.pid}
            if _state(process.pid) == "T":
                time.sleep(1.0)
                os.kill(process.pid, signal.SIGCONT)
            if self.is_calm:
                (self.folder / "calm").touch()
            elif now > next_event:
                self._happen(process.pid)
                next_event = time.monotonic() + self.dice.expovariate(1 / EVENT_S)
            if self.is_steady and now > next_sample:
                next_sample = now + SAMPLE_S
                self.samples.append((now - began, tree_bytes(process.pid), _descriptors(process.pid)))
            if now > self.end:
                self.is_cut_off = True
                process.kill()
            elif now - began > HANGS_S:
                self.tally.problem(f"{self.name}: a start took {HANGS_S:.0f} s: {self._said()}")
                process.kill()
            time.sleep(LOOK_S)

    def _rounds(self) -> int:
        """The size of the table of rounds: it changes when a round is learned."""
        with suppress(OSError):
            return (self.out / "metrics.csv").stat().st_size
        return 0

    def _happen(self, pid: int) -> None:
        event = self.dice.choice(HARMLESS if self.is_steady else EVENTS)
        done = True
        with suppress(ProcessLookupError):
            if event in SIGNALS:
                os.kill(pid, SIGNALS[event])
            elif event == "terminate twice":
                os.kill(pid, signal.SIGTERM)
                time.sleep(self.dice.uniform(0, 0.3))
                os.kill(pid, signal.SIGTERM)
            elif event == "fill the disk":
                done = self._fill()
            elif event == "stop everybody for a while":
                os.killpg(pid, signal.SIGSTOP)
                time.sleep(self.dice.uniform(0.2, 2.0))
                os.killpg(pid, signal.SIGCONT)
            else:
                done = self._kill_workers(pid, event == "kill the fork server")
        if done:
            self.tally.counts[f"fault: {event}"] += 1
            self.tally.counts["faults landed"] += 1

    def _kill_workers(self, pid: int, server: bool) -> bool:
        """Kill the fork server, or all that were forked from it; whether there was one."""
        children = [own for own in process_tree(pid) if own != pid and "forkserver" in _command(own)]
        found = [own for own in children if (_parent(own) == pid) == server]
        for own in found:
            with suppress(ProcessLookupError):
                os.kill(own, signal.SIGKILL)
        return bool(found)

    def _fill(self) -> bool:
        """Fill the disk for a second or two; never one that others use."""
        if not self.disk.is_mount():
            return False
        full = self.disk / "full"
        with suppress(OSError), full.open("wb") as file:
            while True:
                file.write(b"\0" * (1 << 20))
        time.sleep(self.dice.uniform(0.5, 2.0))
        full.unlink(missing_ok=True)
        return True

    def _perhaps_damage_a_table(self) -> None:
        """What a power failure leaves of a table: its end cut off, or zeros."""
        path = self.out / self.dice.choice(["metrics.csv", "system.csv"])
        if self.is_calm or self.dice.random() > 0.15 or not path.exists():
            return
        content = path.read_bytes()
        path.write_bytes(content[:-9] if self.dice.random() < 0.5 else content[:-40] + b"\0" * min(40, len(content)))
        self.is_damaged = True
        self.tally.counts[f"fault: {path.name} damaged between two starts"] += 1
        self.tally.counts["faults landed"] += 1

    def _look_for_what_is_left(self) -> None:
        end = time.monotonic() + LEFT_S
        while (alive := self._alive()) and time.monotonic() < end:
            time.sleep(LOOK_S)
        if alive:
            self.tally.counts["processes left"] += len(alive)
            self.tally.problem(f"{self.name}: left: {[_command(pid) for pid in alive]}")
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.everybody.clear()
        while any(self.temporary.iterdir()) and time.monotonic() < end:
            time.sleep(LOOK_S)  # who cleans up after a killed process needs a moment
        for path in self.temporary.iterdir():
            self.tally.counts["temporary files left"] += 1
            self.tally.problem(f"{self.name}: left: {path.name}")
            shutil.rmtree(path, ignore_errors=True)
            path.unlink(missing_ok=True)

    def _alive(self) -> list[int]:
        """Processes of this run that have not ended."""
        return [pid for pid in self.everybody if _state(pid) not in ("", "Z", "X") and self._is_ours(pid)]

    def _look_for_segments(self, before: set[Path]) -> None:
        end = time.monotonic() + LEFT_S
        while (left := set(Path("/dev/shm").iterdir()) - before) and time.monotonic() < end:
            time.sleep(LOOK_S)
        if left:
            self.tally.counts["segments of shared memory left"] += len(left)
            self.tally.problem(f"{self.name}: shared memory left: {sorted(map(str, left))}")

    def _is_ours(self, pid: int) -> bool:
        """Whether the process was started by this run: its number may be another's by now."""
        with suppress(OSError):
            return str(self.folder).encode() in Path(f"/proc/{pid}/environ").read_bytes()
        return False

    def _said(self) -> str:
        return (self.folder / "stderr").read_text(errors="replace")[-400:]

    def _count_faults(self) -> None:
        from chaos import landed

        for fault in landed(self.folder):
            self.tally.counts[f"fault: {fault.role} {fault.kind} in {fault.phase}"] += 1
            self.tally.counts["faults landed"] += 1

    def _check(self, known: dict[str, Any]) -> None:
        """Every episode once; where it is promised, the weights of a run to which nothing happened."""
        run = remuda.Run(self.out)
        table, result = run.metrics, run.result
        rounds = sorted(zip(table["round"].tolist(), table["agent"].tolist(), strict=True))
        wanted = [(number, agent) for number in range(1, run.plan.rounds + 1) for agent in range(2)]
        self.tally.counts["runs finished"] += 1
        self.tally.counts["episodes"] += result["episodes"]
        if self.is_damaged:
            self.tally.counts["runs with a damaged table"] += 1
            whole = len(set(rounds)) == len(rounds)
        else:
            whole = rounds == wanted
        if not whole or result["episodes"] != EPISODES:
            self.tally.counts["runs with rounds lost or doubled"] += 1
            self.tally.problem(f"{self.name}: rounds {len(rounds)} of {len(wanted)}")
        if result["failures"]["episodes_given_up"]:
            self.tally.counts["runs with episodes given up"] += 1
            return
        if "mark" in table and not self.is_damaged:
            self.tally.counts["runs whose marks were compared"] += 1
            if _marks(run) != known["marks"]:
                self.tally.problem(f"{self.name}: an episode was lost or doubled")
        if self.by_round:
            self.tally.counts["runs whose weights were compared"] += 1
            if result["weights_sha256"] != known["weights"]:
                self.tally.counts["weights different"] += 1
                self.tally.problem(f"{self.name}: other weights")

    def _keep_memory(self) -> None:
        """How memory and descriptors of a first process that lived on changed, after its first ten seconds."""
        late = [sample for sample in self.samples if sample[0] > 10.0]
        if len(late) >= 20:
            part = len(late) // 4
            ends = [
                [statistics.median(sample[column] for sample in some) for some in (late[:part], late[-part:])]
                for column in (1, 2)
            ]
            self.tally.memory.append([self.name, round(late[-1][0] - late[0][0]), *ends[0], *ends[1]])

    def _reference(self) -> dict[str, Any]:
        """The same plan, undisturbed, with the code as it is now."""
        plan = {**self._plan(), "lag": self.lag, "deterministic": "true", **UNHURRIED}
        name = f"{self.game} {hashlib.sha256(json.dumps([plan, _code()]).encode()).hexdigest()[:12]}"
        if name not in self.tally.references:
            out = self.folder / "reference"
            words = [f"{setting}={value}" for setting, value in plan.items()]
            command = [sys.executable, "-m", "remuda", "train", self.game, *words, "--engine", "vectorized"]
            environment = {**os.environ, "PYTHONPATH": _paths()}
            command += ["--out", str(out)]
            subprocess.run(command, env=environment, check=True, capture_output=True, timeout=HANGS_S)
            run = remuda.Run(out)
            marks = _marks(run) if "mark" in run.metrics else 0
            self.tally.references[name] = {"weights": run.result["weights_sha256"], "marks": marks}
        return self.tally.references[name]


def _marks(run: remuda.Run) -> int:
    """The marks of all episodes in the table, which has their mean by round."""
    table, plan = run.metrics, run.plan
    return sum(
        int(np.rint(mark * (plan.episodes_after(int(number)) - plan.episodes_after(int(number) - 1))))
        for number, mark in zip(table["round"], table["mark"], strict=True)
    )


@cache
def _code() -> str:
    """A hash of remuda's sources: a later part may be run with others, which may give other weights."""
    sources = sorted(Path(remuda.__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()


def _paths() -> str:
    return os.pathsep.join([str(FAULT_TESTS), str(HERE), os.environ.get("PYTHONPATH", "")])


def _state(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _parent(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:300]
    return ""


def _descriptors(pid: int) -> int:
    with suppress(OSError):
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return 0
