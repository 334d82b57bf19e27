"""Learning on hosts that are really apart: what each link carries, links that are cut, learners and nodes that die."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hosts
import pytest

import proc
import remuda

PATIENCE_S = 1200.0
PLAN: dict[str, Any] = {
    "agents": 4, "worlds": 8, "total_episodes": 400, "n_workers": 2, "n_learners": 2, "engine": "ray",
    "deterministic": True, "evaluate_episodes": 8, "checkpoint_every": 200, "device": "cpu", "pictures": False,
    "start_limit_s": 600,
}  # fmt: skip
LEARNERS: dict[str, dict[str, Any]] = {
    "iqn": {"layer": 32, "quantiles": 8, "acting_quantiles": 8, "batch_size": 16, "replay_size": 1024},
    "ppo": {"learner": "ppo", "layers": [16], "minibatches": 2, "passes": 2},
}
TREASURE: dict[str, Any] = {"game": "treasurehunt", "turns": 50}
CUT_S = 60.0
STRIKES = ["kill"] * 6 + ["stop"] * 4 + ["node"] * 3 + ["cut"] * 2
"""What happens to learners: two of their processes are killed or stopped, their node is killed, its link is cut."""
CHAOS: dict[str, Any] = {
    "game": "fault_games:FAULTY", "turns": 12, "worlds": 4, "total_episodes": 800, "checkpoint_every": 20, "lag": 1,
    "keep_checkpoints": 3, "evaluate_episodes": 4, "update_limit_s": 10.0, "n_workers": 1, "n_learners": 4,
}  # fmt: skip

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def three_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hosts.Hosts]:
    """Ray's head and two workers, started as docs/cluster.md says."""
    if reason := hosts.why_not():
        print(f"NOT TESTED: {reason}", file=sys.__stderr__)
        pytest.skip(reason)
    own = hosts.Hosts(tmp_path_factory.mktemp("hosts"), cpus=6)
    yield own
    own.end()


class Session:
    """`remuda train` on the first host."""

    def __init__(self, own: hosts.Hosts, folder: Path, **settings: Any) -> None:
        self.out = folder / "run"
        plan = {**PLAN, "address": f"{own.address(0)}:{hosts.PORT}", **settings}
        words = [f"{name}={value}" for name, value in plan.items()]
        path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "remuda", "train", *words, "--out", str(self.out)]
        self.log = (folder / "train.log").open("wb")
        self.process = own.run(0, ["env", f"PYTHONPATH={path}", *command], self.log)

    @property
    def console(self) -> str:
        path = self.out / "console.log"
        return path.read_text() if path.exists() else ""

    @property
    def rounds(self) -> int:
        path = self.out / "metrics.csv"
        return (len(path.read_text().splitlines()) - 1) // PLAN["agents"] if path.exists() else 0

    def wait_for(self, rounds: int) -> None:
        def there_or_ended() -> bool:
            return self.rounds >= rounds or self.process.poll() is not None

        proc.wait(there_or_ended, PATIENCE_S, lambda: f"{self.rounds} rounds: {self.console}")
        assert self.rounds >= rounds, Path(self.log.name).read_text()

    def finish(self) -> remuda.Run:
        code = self.process.wait(PATIENCE_S)
        self.log.close()
        assert code == 0, Path(self.log.name).read_text()
        return remuda.Run(self.out, trust=True)


def whole(folder: Path, **settings: Any) -> remuda.Run:
    """The run of one machine to which nothing happens."""
    plan = {**PLAN, **settings, "engine": "vectorized", "n_workers": None, "n_learners": None}
    return remuda.train(out=folder / "whole", quiet=True, **plan)


def test_fragments_and_weights_go_from_node_to_node(three_hosts: hosts.Hosts, tmp_path: Path) -> None:
    """The first machine has no actors: its link carries tasks, reports and scores, no fragments and no weights."""
    training = Session(three_hosts, tmp_path, **TREASURE, **LEARNERS["iqn"])
    training.wait_for(2)
    rounds, before = training.rounds, [three_hosts.traffic(host) for host in range(hosts.HOSTS)]
    training.wait_for(24)  # before the first checkpoint
    rounds, after = training.rounds - rounds, [three_hosts.traffic(host) for host in range(hosts.HOSTS)]
    episodes = rounds * PLAN["worlds"]
    each = [(late - early) / episodes for early, late in zip(before, after, strict=True)]
    print(f"bytes per episode on the links of the hosts: {[round(own) for own in each]}")
    result = training.finish().result
    assert f"on {three_hosts.address(1)}" in training.console
    assert f"on {three_hosts.address(2)}" in training.console
    assert each[0] < 8_000
    assert min(each[1:]) > 2 * each[0], "the data goes between the others"
    assert result["weights_sha256"] == whole(tmp_path, **TREASURE, **LEARNERS["iqn"]).result["weights_sha256"]


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_link_that_is_cut_for_a_minute(three_hosts: hosts.Hosts, tmp_path: Path, learner: str) -> None:
    training = Session(three_hosts, tmp_path, **TREASURE, **LEARNERS[learner])
    training.wait_for(5)
    three_hosts.link(2, "down")
    time.sleep(CUT_S)
    three_hosts.link(2, "up")
    result = training.finish().result
    print(training.console)
    assert (result["finished"], result["episodes"]) == (True, PLAN["total_episodes"])
    assert result["weights_sha256"] == whole(tmp_path, **TREASURE, **LEARNERS[learner]).result["weights_sha256"]


class Torment:
    """Faults that land on learners and their nodes, one after the other; each time training must go on."""

    def __init__(self, own: hosts.Hosts, training: Session) -> None:
        self.hosts, self.training = own, training
        self.landed: Counter[str] = Counter()

    def strike(self, kind: str, dice: random.Random) -> None:
        learners = dice.sample(self._learners(), 2)
        host, rounds = learners[0][0], self.training.rounds
        if kind == "cut":
            self.hosts.link(host, "down")
            time.sleep(CUT_S)
            self.hosts.link(host, "up")
            self.landed[kind] += 1
        else:
            victims = self._on(host, "raylet/raylet")[:1] if kind == "node" else [own for _, own in learners]
            for victim in victims:
                os.kill(victim.pid, signal.SIGSTOP if kind == "stop" else signal.SIGKILL)
            for victim in victims:
                proc.wait(lambda: not victim.alive, PATIENCE_S, lambda: f"{kind} {victim}: {self.training.console}")  # noqa: B023
                self.landed[kind] += 1
        self.training.wait_for(rounds + 2)

    def _learners(self) -> list[tuple[int, proc.Process]]:
        """Learners, and on which host they are."""
        found: list[tuple[int, proc.Process]] = []

        def look() -> bool:
            found[:] = [(host, own) for host in range(1, hosts.HOSTS) for own in self._on(host, "LearnerActor")]
            return len(found) > 1

        proc.wait(look, PATIENCE_S, lambda: f"no two learners: {self.training.console}")
        return found

    def _on(self, host: int, what: str) -> list[proc.Process]:
        words = ["ip", "netns", "pids", self.hosts.names[host]]
        pids = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
        running = [own for own in map(proc.find, map(int, pids)) if own is not None]
        return [own for own in running if what in own.command and not proc.stopped(own.pid)]


@pytest.mark.parametrize("learner", LEARNERS)
def test_chaos_on_learners_and_nodes(
    three_hosts: hosts.Hosts, tmp_path: Path, csv_rows: Callable[[remuda.Run], Any], learner: str
) -> None:
    """Every planned episode is in the CSV files once, with the weights of a run to which nothing happened."""
    brake = tmp_path / "brake"
    brake.touch()
    training = Session(three_hosts, tmp_path, **CHAOS, **LEARNERS[learner], brake=brake, pause_s=0.05)
    torment, dice = Torment(three_hosts, training), random.Random(learner)
    training.wait_for(3)
    for kind in dice.sample(STRIKES, len(STRIKES)):
        before = time.monotonic()
        torment.strike(kind, dice)
        print(f"{kind}: {time.monotonic() - before:.0f} s, {training.rounds} rounds", flush=True)
    brake.unlink()
    run = training.finish()
    restarts = sum(own["restarts"] for own in run.result["processes"] if own["name"].startswith("learner"))
    print(f"{learner}: {sum(torment.landed.values())} faults {dict(torment.landed)}, learners placed again {restarts}x")
    one = whole(tmp_path, **CHAOS, **LEARNERS[learner], brake=str(brake))
    assert sum(torment.landed.values()) >= 25
    assert restarts >= torment.landed["kill"] + torment.landed["stop"]
    assert (run.result["finished"], run.result["episodes"]) == (True, CHAOS["total_episodes"])
    assert run.result["weights_sha256"] == one.result["weights_sha256"]
    assert csv_rows(run) == csv_rows(one)
