"""Ray: a cluster of one's own that ends with the run, actors and nodes that die, nodes that come, and no Ray at all."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from drill import EPISODES, PATIENCE_S, PLAN, Training

import proc
import remuda
from ray_nodes import RayNodes
from remuda.core.errors import WorkerError
from remuda.engines.collectors.ray import actor_pool, supervisor
from remuda.engines.collectors.ray import collectors as placement
from remuda.engines.collectors.ray.cluster import require_ray
from remuda.engines.collectors.ray.collectors import RayCollectors
from remuda.engines.collectors.ray.weights import FetchedWeights
from remuda.runs import limits
from remuda.runs.replay import replay_failure
from remuda.runs.settings import make_plan

SHORT = {**PLAN, "total_episodes": 24, "engine": "ray", "deterministic": True}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Training]]:
    """Start `remuda train --engine ray` as a process."""
    started: list[Training] = []

    def start(**changes: Any) -> Training:
        started.append(Training(tmp_path, **{"engine": "ray", "deterministic": True, **changes}))
        return started[-1]

    yield start
    for one in started:
        one.end()


@pytest.fixture
def faulty(tmp_path: Path, ray_here: None) -> Callable[..., remuda.Run]:
    """Train in actors of this process's Ray."""

    def train(name: str = "run", callback: Any = None, **changes: Any) -> remuda.Run:
        settings = {**SHORT, **changes}
        return remuda.train(
            "fault_games:FAULTY", out=tmp_path / name, quiet=True, callbacks=[callback] if callback else [], **settings
        )

    return train


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], str]:
    """The weights of a run of so many episodes to which nothing happens."""
    known: dict[int, str] = {}

    def weights(episodes: int) -> str:
        if episodes not in known:
            out = tmp_path_factory.mktemp("undisturbed") / "run"
            settings = {**PLAN, "deterministic": True, "engine": "sequential", "total_episodes": episodes}
            run = remuda.train("fault_games:FAULTY", out=out, quiet=True, **settings)
            known[episodes] = run.result["weights_sha256"]
        return known[episodes]

    return weights


def listening(pids: set[int]) -> set[str]:
    """Addresses at which processes accept connections."""
    sockets = {
        link.readlink().name
        for pid in pids
        for link in Path(f"/proc/{pid}/fd").glob("*")
        if str(link.readlink()).startswith("socket:")
    }
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                found.add(fields[1].partition(":")[0])
    return found


def loopback(address: str) -> bool:
    """127.0.0.1, or the same written for IPv6."""
    return address in ("0100007F", "0000000000000000FFFF00000100007F")


def test_a_cluster_of_ones_own_stays_on_this_machine_and_ends_with_the_run(start: Any, undisturbed: Any) -> None:
    one: Training = start()
    one.wait(lambda: one.rounds >= 2)
    everybody = proc.descendants(one.process.pid)
    one.others |= everybody
    commands = [Path(f"/proc/{other.pid}/cmdline").read_text() for other in everybody]
    assert any("gcs_server" in command for command in commands)
    assert all("--disable-frontend" in command for command in commands if "dashboard.py" in command)
    addresses = listening({other.pid for other in everybody} | {one.process.pid})
    assert addresses
    assert all(loopback(address) for address in addresses), addresses
    folders = set(Path("/tmp").glob("remuda-ray-*"))
    one.brake.unlink()
    assert one.process.wait(PATIENCE_S) == 0, one.err
    proc.wait(lambda: not one.left(), 30.0, lambda: f"left behind: {one.left()}")
    assert len(folders - set(Path("/tmp").glob("remuda-ray-*"))) == 1, "its folder should be gone"
    result = remuda.Run(one.out).result
    assert result["weights_sha256"] == undisturbed(EPISODES)
    assert [helper["name"] for helper in result["processes"]] == ["actor-0", "actor-1"]
    assert "ray: 2 actors, a cluster of its own on this machine" in (one.out / "console.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ending_the_first_process(start: Any, undisturbed: Any, number: signal.Signals) -> None:
    one: Training = start()
    one.wait(lambda: len(one.saved) >= 2)
    one.others |= proc.descendants(one.process.pid)
    one.process.send_signal(number)
    assert one.process.wait(PATIENCE_S) == (128 + number if number is signal.SIGTERM else -9), one.err
    proc.wait(lambda: not one.left(), 60.0, lambda: f"left behind: {one.left()}")
    one.brake.unlink()
    again = remuda.resume(one.out, engine="sequential", quiet=True)
    assert again.result["weights_sha256"] == undisturbed(EPISODES)


def test_killing_the_first_process_while_ray_starts_leaves_nothing(start: Any) -> None:
    one: Training = start()
    one.wait(lambda: bool(folder_of(one)))
    folder = Path(folder_of(one))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700, "Ray opens its own to everybody"
    one.others |= proc.descendants(one.process.pid)
    one.process.kill()
    one.process.wait()
    proc.wait(lambda: not one.left() and not folder.exists(), 60.0, lambda: f"left behind: {folder}, {one.left()}")


def folder_of(one: Training) -> str:
    """The folder of its Ray, from the command line of a server; empty before there is one."""
    for own in proc.descendants(one.process.pid):
        if "gcs_server" in own.command:
            command = Path(f"/proc/{own.pid}/cmdline").read_text().replace("\0", " ")
            return match[0] if (match := re.search(r"/\S*?/remuda-ray-\w+", command)) else ""
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill", "exit"])
def test_an_actor_that_dies_is_replaced(faulty: Any, undisturbed: Any, tmp_path: Path, fault: str) -> None:
    run = faulty(fault=fault, fault_file=str(tmp_path / "trap"))
    assert run.result["weights_sha256"] == undisturbed(24)
    assert run.result["failures"]["episodes_failed"] == 1
    assert sum(helper["restarts"] for helper in run.result["processes"]) == 1
    assert "replaced" in (run.path / "console.log").read_text()
    with pytest.raises(remuda.RemudaError, match="kept no actions: they were lost with actor-"):
        replay_failure(run.path, 1)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "raise"])
def test_a_replacement_that_cannot_start_is_replaced_too(
    faulty: Any, undisturbed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """An actor is killed over a game, the next one while it starts: only those of the beginning end a run by that."""
    first, second = tmp_path / "trap", tmp_path / "another"

    class Fragile(placement.RolloutActor):
        def __init__(self, *args: Any) -> None:
            if first.exists() and not second.exists():
                second.touch()
                if how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise OSError("no space left on this node")
            super().__init__(*args)

    monkeypatch.setattr(placement, "RolloutActor", Fragile)
    monkeypatch.setattr(actor_pool, "RESTART_DELAY_S", 0.1)
    run = faulty(fault="kill", fault_file=str(first), n_workers=1)
    assert run.result["weights_sha256"] == undisturbed(24)
    assert run.result["failures"]["episodes_failed"] == 1
    assert sum(helper["restarts"] for helper in run.result["processes"]) == 2
    assert "actor-0 could not start: " in (run.path / "console.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["hang", "spin"])
def test_an_actor_that_falls_silent_is_replaced(faulty: Any, undisturbed: Any, tmp_path: Path, fault: str) -> None:
    run = faulty(fault=fault, fault_file=str(tmp_path / "trap"), turn_limit_s=3.0)
    assert run.result["weights_sha256"] == undisturbed(24)
    assert "made no progress for" in (run.path / "console.log").read_text()


@pytest.mark.slow
def test_an_actor_that_is_only_slow_is_left_alone(faulty: Any, tmp_path: Path) -> None:
    brake = tmp_path / "brake"
    brake.touch()
    run = faulty(brake=str(brake), pause_s=0.4, turn_limit_s=2.0, total_episodes=4)  # an episode takes 5 s
    assert run.result["failures"]["episodes_failed"] == 0
    assert not any(helper["restarts"] for helper in run.result["processes"])


def test_weights_are_put_once_per_version_and_fragments_are_not_copied(
    faulty: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray, puts, writeable = require_ray(), [], []
    put, on_result = ray.put, RayCollectors.on_result

    def counted(value: Any) -> Any:
        puts.append(value)
        return put(value)

    def looked_at(self: RayCollectors, handle: Any, task: Any, result: Any) -> None:
        writeable.extend(fragment.obs.flags.writeable for fragment in result.fragments)
        on_result(self, handle, task, result)

    monkeypatch.setattr(ray, "put", counted)
    monkeypatch.setattr(RayCollectors, "on_result", looked_at)
    run = faulty()
    versions = run.result["lag"]["versions_published"]
    assert len(puts) == 1 + versions + 1  # those of the beginning, every version, and for the evaluation
    assert writeable
    assert not any(writeable), "what lies in the object store is only lent"


@pytest.mark.slow
def test_too_many_deaths_end_the_run_after_saving(faulty: Any, tmp_path: Path) -> None:
    with pytest.raises(remuda.RemudaError, match=r"more failures than max_failures=0\.1 allows"):
        faulty(fault="kill")
    assert remuda.Run(tmp_path / "run").checkpoints()


def test_a_node_that_goes_down_raises_an_error_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would look like a bug of ours, and end the run."""
    ray = require_ray()

    def broken(*args: Any, **options: Any) -> Any:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(ray, "get", broken)
    with pytest.raises(ray.exceptions.RaySystemError, match="Broken pipe"):
        FetchedWeights({}).fetch(1, ["reference"])


class DyingActors:
    """A Ray in which every actor dies before it answers."""

    def __init__(self) -> None:
        self.exceptions = require_ray().exceptions
        self.started = 0

    def start(self, *args: Any) -> Any:
        self.started += 1
        number = self.started
        return SimpleNamespace(node_id=SimpleNamespace(remote=lambda: number))

    def wait(self, references: list[Any], num_returns: int, timeout: float) -> Any:
        return references, []

    def get(self, references: Any, timeout: float) -> Any:
        raise self.exceptions.RayActorError

    def kill(self, actor: Any) -> None:
        pass


def test_as_many_actors_as_there_are_may_fail_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = DyingActors()
    monkeypatch.setattr(supervisor, "require_ray", lambda: ray)
    monkeypatch.setattr(actor_pool, "Cluster", lambda *args: SimpleNamespace(learner_count=lambda: 0))
    plan = make_plan({"game": "treasurehunt", "engine": "ray", "n_workers": 40})
    listener: Any = SimpleNamespace(on_tasks_returned=lambda tasks: None)
    pool = actor_pool.ActorPool(plan, listener, ray.start, lambda: None, lambda text: None)
    pool.connect(0, 0)
    pool.start_missing()
    pool.poll(0.0)
    assert ray.started == 80, "each is replaced"
    with pytest.raises(WorkerError, match="41 actors in a row ended before they finished anything"):
        pool.poll(0.0)


def test_a_game_that_actors_cannot_import_is_one_error(
    faulty: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(placement, "sys", SimpleNamespace(path=[]))
    with pytest.raises(remuda.RemudaError, match=r"could not start: .*fault_games"):
        faulty()


@pytest.fixture
def nodes() -> Iterator[RayNodes]:
    """A cluster."""
    cluster = RayNodes()
    yield cluster
    cluster.end()


def home(log: Path, actor: str) -> str:
    """The node an actor said it lives on; empty before it did."""
    found = re.search(rf"{actor} joined on node (\w+)", log.read_text()) if log.exists() else None
    return found[1] if found else ""


@pytest.mark.slow
@pytest.mark.parametrize("actor", ["actor-0", "actor-2"])
def test_a_node_goes_and_another_comes_in_mid_training(
    start: Any, nodes: RayNodes, undisturbed: Any, actor: str
) -> None:
    """What the lost node was playing is played again elsewhere; the new one gets an actor; the bits are the same.

    Four worlds are two tasks for three actors: the third has nothing to do, and is missed all the same.
    """
    one: Training = start(address=nodes.address, n_workers=3, pause_s=0.3)  # two minutes and more until the end
    log = one.out / "console.log"
    one.wait(lambda: one.rounds >= 2 and all(home(log, f"actor-{number}") for number in range(3)))
    assert f"ray: 3 actors, a cluster at {nodes.address}" in log.read_text()
    nodes.tell(f"remove {home(log, actor)}")
    one.wait(lambda: f"{actor} was lost with its node: what it played is played again" in log.read_text())
    rounds = one.rounds
    one.wait(lambda: one.rounds >= rounds + 1)  # on two nodes
    added = nodes.tell("add")
    one.wait(lambda: f"joined on node {added}" in log.read_text())
    one.brake.unlink()
    assert one.process.wait(PATIENCE_S) == 0, one.err
    result = remuda.Run(one.out).result
    assert (result["finished"], result["episodes"]) == (True, EPISODES)
    assert result["failures"]["episodes_failed"] == 0
    assert sum(helper["restarts"] for helper in result["processes"]) == 1
    assert result["weights_sha256"] == undisturbed(EPISODES)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nowhere", "127.0.0.1:99999"])
def test_an_address_where_nobody_answers(cli: Any, words: list[str], tmp_path: Path, address: str) -> None:
    outcome = cli("train", *words, "--engine", "ray", "--address", address, "--out", tmp_path / "run")
    assert outcome.code == 2
    assert f"error: address={address}: no Ray cluster answers there" in outcome.err.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_an_address_is_for_ray_only(cli: Any, words: list[str], tmp_path: Path) -> None:
    outcome = cli("train", *words, "--address", "auto", "--out", tmp_path / "run")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "address=auto is for engine=ray" in outcome.err


def test_without_ray_one_sentence_names_the_extra(
    cli: Any, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    outcome = cli("train", *words, "--engine", "ray", "--out", tmp_path / "run")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "pip install 'remuda-rl[ray]'" in outcome.err
    assert not (tmp_path / "run").exists()


def test_too_little_shared_memory_is_refused_with_the_remedy(
    cli: Any, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = limits.shutil.disk_usage
    small = SimpleNamespace(total=64 << 20, used=0, free=64 << 20)
    monkeypatch.setattr(limits.shutil, "disk_usage", lambda path: small if path == limits.SHARED else usage(path))
    outcome = cli("train", *words, "--engine", "ray", "--out", tmp_path / "run")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "engine=ray needs 128 MiB of shared memory for this plan, /dev/shm has 64 free" in outcome.err
    assert "--shm-size=128m" in outcome.err


def test_only_one_module_imports_ray() -> None:
    source = Path(remuda.__file__).parent
    importing = re.compile(r"""^\s*(import|from) ray\b|import_module\(["']ray\b""", re.MULTILINE)
    modules = {path.relative_to(source) for path in source.rglob("*.py") if importing.search(path.read_text())}
    assert modules == {Path("engines/collectors/ray/cluster.py")}
    code = "import sys, remuda.runs.training, remuda.engines.build; assert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
