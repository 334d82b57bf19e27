"""Learning on hosts that are really apart: what each link carries, and a link that is cut for a minute."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hosts
import pytest

import proc
import remuda

PATIENCE_S = 1200.0
PLAN: dict[str, Any] = {
    "agents": 4, "worlds": 8, "turns": 50, "total_episodes": 400, "n_workers": 2, "n_learners": 2, "engine": "ray",
    "layer": 32, "quantiles": 8, "acting_quantiles": 8, "batch_size": 16, "replay_size": 1024, "deterministic": True,
    "evaluate_episodes": 8, "checkpoint_every": 200, "device": "cpu", "pictures": False, "start_limit_s": 600,
}  # fmt: skip

pytestmark = pytest.mark.slow


@pytest.fixture
def three_hosts(tmp_path: Path) -> Iterator[hosts.Hosts]:
    """Ray's head and two workers, started as docs/cluster.md says."""
    if reason := hosts.why_not():
        print(f"NOT TESTED: {reason}", file=sys.__stderr__)
        pytest.skip(reason)
    own = hosts.Hosts(tmp_path, cpus=3)
    yield own
    own.end()


class Session:
    """`remuda train` on the first host."""

    def __init__(self, own: hosts.Hosts, folder: Path, **changes: Any) -> None:
        self.out = folder / "run"
        settings = {**PLAN, "address": f"{own.address(0)}:{hosts.PORT}", **changes}
        words = [f"{name}={value}" for name, value in settings.items()]
        command = [sys.executable, "-m", "remuda", "train", "treasurehunt", *words, "--out", str(self.out)]
        self.log = (folder / "train.log").open("wb")
        self.process = own.run(0, command, self.log)

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

    def finish(self) -> dict[str, Any]:
        code = self.process.wait(PATIENCE_S)
        self.log.close()
        assert code == 0, Path(self.log.name).read_text()
        return dict(remuda.Run(self.out).result)


def whole(folder: Path) -> str:
    settings = {**PLAN, "engine": "vectorized", "n_workers": None, "n_learners": None}
    return str(remuda.train("treasurehunt", out=folder / "whole", quiet=True, **settings).result["weights_sha256"])


def test_fragments_and_weights_go_from_node_to_node(three_hosts: hosts.Hosts, tmp_path: Path) -> None:
    """The first machine has no actors: its link carries tasks, reports and scores, no fragments and no weights."""
    training = Session(three_hosts, tmp_path)
    training.wait_for(2)
    rounds, before = training.rounds, [three_hosts.traffic(host) for host in range(hosts.HOSTS)]
    training.wait_for(24)  # before the first checkpoint
    rounds, after = training.rounds - rounds, [three_hosts.traffic(host) for host in range(hosts.HOSTS)]
    episodes = rounds * PLAN["worlds"]
    each = [(late - early) / episodes for early, late in zip(before, after, strict=True)]
    print(f"bytes per episode on the links of the hosts: {[round(own) for own in each]}")
    result = training.finish()
    assert f"on {three_hosts.address(1)}" in training.console
    assert f"on {three_hosts.address(2)}" in training.console
    assert each[0] < 8_000
    assert min(each[1:]) > 2 * each[0], "the data goes between the others"
    assert result["weights_sha256"] == whole(tmp_path)


def test_a_link_that_is_cut_for_a_minute(three_hosts: hosts.Hosts, tmp_path: Path) -> None:
    training = Session(three_hosts, tmp_path)
    training.wait_for(5)
    three_hosts.link(2, "down")
    time.sleep(60)
    three_hosts.link(2, "up")
    result = training.finish()
    print(training.console)
    assert (result["finished"], result["episodes"]) == (True, PLAN["total_episodes"])
    assert result["weights_sha256"] == whole(tmp_path)
