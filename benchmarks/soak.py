"""Soak test: hours of training with faults, in stretches; is every episode learned once, and is nothing left behind?

    SOAK_S=10800 SOAK_FOLDER=soak python -m benchmarks soak

A stretch is one run that is trained to its end, however often that takes: `remuda train`, then `remuda resume` with
another engine each time. Meanwhile the hook of the chaos tests kills, stops, slows down or raises in any process; the
first process gets signals; its disk is filled and freed (where a small one can be mounted); the clock jumps; and
another process reads the run. Every stretch adds to `tally.json`, from which a soak that was stopped goes on.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import remuda
from benchmarks.harness import machine
from remuda.core.machine import process_tree, tree_bytes
from remuda.runs import checkpoint

HERE = Path(__file__).parent
FAULT_TESTS = HERE.parent / "tests" / "promises" / "faults"
SOAK_S = float(os.environ.get("SOAK_S", "10800"))
FOLDER = Path(os.environ.get("SOAK_FOLDER", "soak"))
DISK_MIB = 96
LOOK_S, END_S, MOST_STARTS = 0.1, 60.0, 60
EVENTS = ("terminate", "interrupt", "hang up", "kill", "fill the disk")
"""What happens to the first process and its disk, every EVENT_S seconds or so."""
EVENT_S = 15.0
EPISODES = 600
PLAN: dict[str, Any] = {
    "turns": 12, "worlds": 4, "total_episodes": EPISODES, "n_workers": 2, "agents": 2, "evaluate_episodes": 4,
    "checkpoint_every": 8, "keep_checkpoints": 3, "device": "cpu", "pictures": "false", "max_failures": 1.0,
    "turn_limit_s": 10, "update_limit_s": 10,
}  # fmt: skip
GAMES = ("soak_games:CHAOTIC", "soak_games:cartpole")
LEARNERS: dict[str, dict[str, Any]] = {
    "iqn": {"layer": 16, "quantiles": 4, "acting_quantiles": 4, "batch_size": 8, "replay_size": 256, "frames": 2},
    "ppo": {"layers": "[8]", "minibatches": 2, "passes": 2, "frames": 2},
}
BY_ROUND = ("sequential", "vectorized", "threads", "sync", "executor", "ray")
"""Engines that give the same weights, to the bit, also one after another."""
FREE = ("threads", "executor", "actor-learner")
KINDS = [f"{role}-{kind}" for role in ("main", "worker") for kind in ("kill", "stop", "raise", "slow")]
PHASES = {"collect": 40, "hand-over": 20, "update": 20, "publish": 20, "save": 20}


class Tally:
    """What was done and found so far, in a file that is replaced after every stretch."""

    def __init__(self, path: Path) -> None:
        self.path = path
        known = json.loads(path.read_text()) if path.exists() else {}
        self.counts: Counter[str] = Counter(known.get("counts", {}))
        self.problems: list[str] = known.get("problems", [])
        self.references: dict[str, dict[str, Any]] = known.get("references", {})

    def problem(self, text: str) -> None:
        """Something that should not have been."""
        self.counts["problems"] += 1
        self.problems.append(text[:600])

    def write(self) -> None:
        """Replace the file."""
        draft = self.path.with_suffix(".draft")
        content = {
            "counts": dict(sorted(self.counts.items())),
            "problems": self.problems,
            "references": self.references,
        }
        draft.write_text(json.dumps(content, indent=1))
        draft.replace(self.path)


class Readers:
    """Reads a run again and again, as a notebook or a dashboard would, while it is being trained."""

    def __init__(self, out: Path, tally: Tally) -> None:
        self.out, self.tally = out, tally
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._over.wait(0.3):
            if not any((self.out / "checkpoints").glob("[0-9]*")):
                continue
            try:
                run = remuda.load(self.out)
                run.metrics  # noqa: B018
                checkpoint.read(run.checkpoint(only="policy"), "policy")
                repr(run)
            except Exception as error:  # every one is a finding
                self.tally.counts[f"reads failed: {type(error).__name__}"] += 1
                self.tally.problems.append(f"reader: {error}"[:300])
            self.tally.counts["reads"] += 1

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Read until the block ends."""
        self._thread.start()
        yield
        self._over.set()
        self._thread.join()


class Stretch:
    """One run, from its beginning to its end."""

    def __init__(self, folder: Path, disk: Path, tally: Tally, dice: random.Random) -> None:
        self.folder, self.disk, self.tally, self.dice = folder, disk, tally, dice
        self.out, self.temporary = disk / "run", folder / "tmp"
        self.temporary.mkdir(parents=True)
        self.game, self.learner = dice.choice(GAMES), dice.choice([*LEARNERS])
        self.by_round = dice.random() < 0.7
        self.lag = dice.choice([0, 0, 1]) if self.by_round else 0
        self.everybody: set[int] = set()
        (folder / "wishes.json").write_text(json.dumps({"phases": PHASES, "kinds": KINDS, "every_s": 0.3}))

    @property
    def plan(self) -> dict[str, Any]:
        """The settings of the run; engine and workers come with each start."""
        deterministic = {"deterministic": "true", "lag": self.lag} if self.by_round else {}
        return {**PLAN, "learner": self.learner, **LEARNERS[self.learner], **deterministic}

    def run(self) -> None:
        """Start it until it is finished, then look at what came out."""
        with Readers(self.out, self.tally).beside():
            for starts in range(1, MOST_STARTS + 1):
                self.tally.counts["starts"] += 1
                code = self._live(self._words())
                self.tally.counts[f"exit code {code}"] += 1
                self._look_for_what_is_left()
                if code == 0 and remuda.Run(self.out).finished:
                    self._check()
                    break
                if code not in (0, -9, 2, 129, 130, 143):
                    self.tally.problem(f"{self._name()}, start {starts}: exit code {code}: {self._said()}")
            else:
                self.tally.problem(f"{self._name()} did not come to its end in {MOST_STARTS} starts: {self._said()}")
        sys.path.insert(0, str(FAULT_TESTS))
        from chaos import landed

        for fault in landed(self.folder):
            self.tally.counts[f"fault: {fault.role} {fault.kind} in {fault.phase}"] += 1
            self.tally.counts["faults landed"] += 1
        self.tally.counts["stretches"] += 1

    def _name(self) -> str:
        return f"{self.game} {self.learner} {'by round' if self.by_round else 'free'} lag {self.lag}"

    def _words(self) -> list[str]:
        engine = self.dice.choice(BY_ROUND if self.by_round else FREE)
        if engine == "ray" and self.dice.random() < 0.5:  # it takes longest to start
            engine = "executor"
        self.tally.counts[f"engine {engine}"] += 1
        if (self.out / "config.yaml").exists():
            return ["resume", str(self.out), "--engine", engine]
        shutil.rmtree(self.out, ignore_errors=True)
        words = [f"{name}={value}" for name, value in self.plan.items()]
        return ["train", self.game, *words, "--engine", engine, "--out", str(self.out)]

    def _live(self, words: list[str]) -> int:
        """Until the first process ends."""
        environment = {**os.environ, "REMUDA_CHAOS": str(self.folder), "TMPDIR": str(self.temporary)}
        environment["PYTHONPATH"] = os.pathsep.join([str(FAULT_TESTS), str(HERE), os.environ.get("PYTHONPATH", "")])
        if self.dice.random() < 0.5:
            environment["SOAK_CLOCK"] = "1"
        began, learned = time.monotonic(), self._rounds()
        with (self.folder / "stderr").open("w") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", "remuda", *words],
                env=environment, stdout=subprocess.DEVNULL, stderr=err, start_new_session=True,
            )  # fmt: skip
        try:
            self._watch(process, began, learned)
        finally:
            process.kill()
            process.wait()
        return process.returncode

    def _watch(self, process: subprocess.Popen[bytes], began: float, learned: int) -> None:
        """Until it ends: wake it when it is stopped, and let something happen once it learns."""
        next_event = float("inf")
        while process.poll() is None:
            if next_event == float("inf") and self._rounds() != learned:
                next_event = time.monotonic() + self.dice.expovariate(1 / EVENT_S)
            self.everybody |= set(process_tree(process.pid)) - {process.pid}
            if _state(process.pid) == "T":
                time.sleep(1.0)
                os.kill(process.pid, signal.SIGCONT)
            if time.monotonic() > next_event:
                self._happen(process.pid)
                next_event = time.monotonic() + self.dice.expovariate(1 / EVENT_S)
            if time.monotonic() - began > 900:
                self.tally.problem(f"{self._name()}: a start took 900 s: {self._said()}")
                process.kill()
            time.sleep(LOOK_S)

    def _rounds(self) -> int:
        """The size of the table of rounds: it changes when a round is learned."""
        with suppress(OSError):
            return (self.out / "metrics.csv").stat().st_size
        return 0

    def _happen(self, pid: int) -> None:
        event = self.dice.choice(EVENTS)
        numbers = {"terminate": signal.SIGTERM, "interrupt": signal.SIGINT, "hang up": signal.SIGHUP}
        self.tally.counts[f"event: {event}"] += 1
        if event == "fill the disk":
            self._fill()
        else:
            with suppress(ProcessLookupError):
                os.kill(pid, numbers.get(event, signal.SIGKILL))

    def _fill(self) -> None:
        """Fill the disk for a second or two; never one that others use."""
        if not self.disk.is_mount():
            return
        full = self.disk / "full"
        with suppress(OSError), full.open("wb") as file:
            while True:
                file.write(b"\0" * (1 << 20))
        time.sleep(self.dice.uniform(0.5, 2.0))
        full.unlink(missing_ok=True)

    def _look_for_what_is_left(self) -> None:
        end = time.monotonic() + END_S
        while alive := [pid for pid in self.everybody if _state(pid) not in ("", "Z", "X") and self._is_ours(pid)]:
            if time.monotonic() > end:
                self.tally.counts["processes left"] += len(alive)
                self.tally.problem(f"{self._name()}: left: {[_command(pid) for pid in alive]}")
                for pid in alive:
                    os.kill(pid, signal.SIGKILL)
            time.sleep(LOOK_S)
        self.everybody.clear()
        for path in self.temporary.iterdir():
            kind = "Ray's" if path.name.startswith("ray") else "our"
            self.tally.counts[f"{kind} temporary files left"] += 1
            if kind == "our":
                self.tally.problems.append(f"temporary: {path.name}")
            shutil.rmtree(path, ignore_errors=True)
            path.unlink(missing_ok=True)

    def _is_ours(self, pid: int) -> bool:
        """Whether the process was started by this stretch: its number may be another's by now."""
        with suppress(OSError):
            return str(self.folder).encode() in Path(f"/proc/{pid}/environ").read_bytes()
        return False

    def _said(self) -> str:
        return (self.folder / "stderr").read_text(errors="replace")[-400:]

    def _check(self) -> None:
        """Every episode once; where it is promised, the weights of a run to which nothing happened."""
        run = remuda.Run(self.out)
        table, result = run.metrics, run.result
        rounds = sorted(zip(table["round"].tolist(), table["agent"].tolist(), strict=True))
        wanted = [(number, agent) for number in range(1, run.plan.rounds + 1) for agent in range(2)]
        self.tally.counts["episodes"] += result["episodes"]
        if rounds != wanted or result["episodes"] != EPISODES:
            self.tally.counts["runs with rounds lost or doubled"] += 1
            self.tally.problem(f"{self._name()}: rounds {len(rounds)} of {len(wanted)}")
        if result["failures"]["episodes_given_up"]:
            self.tally.counts["runs with episodes given up"] += 1
            return
        known = self._reference()
        if "mark" in table:
            self.tally.counts["marks compared"] += 1
            if abs(float(table["mark"].sum()) - known["marks"]) > 1e-3 * known["marks"]:
                self.tally.problem(f"{self._name()}: an episode was lost or doubled")
        if self.by_round:
            self.tally.counts["weights compared"] += 1
            if result["weights_sha256"] != known["weights"]:
                self.tally.counts["weights different"] += 1
                self.tally.problem(f"{self._name()}: other weights")

    def _reference(self) -> dict[str, Any]:
        """The same plan, undisturbed."""
        name = f"{self.game} {self.learner} {self.lag}"
        if name not in self.tally.references:
            out = self.folder / "reference"
            environment = {**os.environ, "PYTHONPATH": f"{FAULT_TESTS}:{HERE}:{os.environ.get('PYTHONPATH', '')}"}
            plan = {**self.plan, "deterministic": "true", "turn_limit_s": 600, "update_limit_s": 600}
            words = [f"{setting}={value}" for setting, value in plan.items()]
            command = [sys.executable, "-m", "remuda", "train", self.game, *words, "--out", str(out)]
            subprocess.run(command, env=environment, check=True, capture_output=True)
            run = remuda.Run(out)
            marks = float(run.metrics["mark"].sum()) if "mark" in run.metrics else 0.0
            self.tally.references[name] = {"weights": run.result["weights_sha256"], "marks": marks}
        return self.tally.references[name]


def _state(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:100]
    return ""


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk of its own that can be filled without harm; a plain folder where nothing can be mounted."""
    disk = folder / "disk"
    disk.mkdir()
    mounted = not subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "soak", str(disk)], capture_output=True, check=False
    ).returncode
    try:
        yield disk
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(disk)], check=False)


def main() -> None:
    """Go on for SOAK_S seconds, and print the table of everything so far."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # so that nothing is left when it is stopped
    tally = Tally(FOLDER / "tally.json")
    began = time.monotonic()
    descriptors, memory = _descriptors(), 0
    while time.monotonic() - began < SOAK_S:
        stretch_began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="stretch-", dir=FOLDER, ignore_cleanup_errors=True) as name:
            folder = Path(name).absolute()
            with small_disk(folder) as disk:
                Stretch(folder, disk, tally, random.Random()).run()
        tally.counts["seconds"] += round(time.monotonic() - stretch_began)
        memory = memory or tree_bytes(os.getpid())
        tally.write()
    print(f"\nSoak, {tally.counts['seconds']:,} s in all\n  {machine()}")
    for name, count in sorted(tally.counts.items()):
        print(f"  {name}: {count:,}")
    grown = tree_bytes(os.getpid()) / memory - 1 if memory else 0.0
    print(f"  this process: descriptors {_descriptors() - descriptors:+}, memory {grown:+.1%} since its first stretch")
    for text in tally.problems:
        print(f"  - {text}")


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


if __name__ == "__main__":
    main()
