"""Places of trials: what is lost goes on elsewhere, a host that nobody asks ends its trial, and what is refused."""

from __future__ import annotations

import fcntl
import pickle
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import remuda
from remuda.core.errors import ConfigError
from remuda.runs.folder import LOCK, is_held, locked
from remuda.runs.settings import make_plan
from remuda.studies.design import Design, StudyOptions
from remuda.studies.schedule import RunSchedule
from remuda.studies.trials import ray_host
from remuda.studies.trials import trial as trial_module
from remuda.studies.trials.opening import open_places
from remuda.studies.trials.places import Message, TrialLost, TrialPlace, on_ray
from remuda.studies.trials.pool import MAX_DEATHS, TrialPool
from remuda.studies.trials.ray_host import TrialHost
from remuda.studies.trials.trial import Trial, TrialOutcome, TrialProgress, run_trial

LIMIT_S = 60.0


class FakePlace(TrialPlace):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.stops = 0

    def send(self, trial: Trial) -> None:
        self.trial = trial

    def stop(self) -> None:
        self.stops += 1


class FakePlaces:
    """Two places, of which a script says what happens; at first there is none, as on a cluster without room."""

    def __init__(self, answers: Callable[[Trial], Message]) -> None:
        self.places = [FakePlace(), FakePlace()]
        self.answers, self.received = answers, 0
        self.closed = False

    def busy(self) -> list[TrialPlace]:
        return [place for place in self.places if place.trial is not None]

    def idle(self) -> TrialPlace | None:
        if self.received < 3:
            return None
        return next((place for place in self.places if place.trial is None), None)

    def has_idle_cores(self) -> bool:
        return False

    def receive(self, timeout_s: float) -> list[tuple[TrialPlace, Message]]:
        self.received += 1
        return [(place, self.answers(place.trial)) for place in self.busy() if place.trial is not None]

    def close(self) -> None:
        self.closed = True


def trials(count: int) -> list[Trial]:
    return [Trial(str(number), Path(str(number)), {}, 1) for number in range(count)]


def test_trials_wait_for_places_and_lost_ones_go_on_elsewhere() -> None:
    """One dies too often, one loses its node more often than that; the third one has no trouble."""
    seen = {"0": 0, "1": 0, "2": 0}

    def answer(trial: Trial) -> Message:
        seen[trial.name] += 1
        if trial.name == "0":
            return TrialLost("its process ended with exit code 9")
        if trial.name == "1" and seen["1"] <= MAX_DEATHS + 1:
            return TrialLost("its node died", counts=False)
        return TrialOutcome(trial, "finished")

    waiting, places = trials(3), FakePlaces(answer)
    with TrialPool(places) as pool:
        found = {own.trial.name: own for own in pool.run(lambda busy: waiting.pop(0) if waiting else None)}
    assert {name: own.status for name, own in found.items()} == {"0": "failed", "1": "finished", "2": "finished"}
    assert found["0"].why == f"its process ended with exit code 9, {MAX_DEATHS} times"
    assert seen == {"0": MAX_DEATHS, "1": MAX_DEATHS + 2, "2": 1}
    assert places.closed


def test_a_pool_that_is_asked_to_stop_asks_each_trial_once_and_starts_no_other() -> None:
    waiting, places = trials(3), FakePlaces(lambda trial: TrialProgress(trial.name, 1))
    with TrialPool(places, lambda progress: stop()) as pool:

        def stop() -> None:
            pool.stopped_by = 15
            if places.received > 8:
                places.answers = lambda trial: TrialOutcome(trial, "stopped")

        outcomes = [*pool.run(lambda busy: waiting.pop(0) if waiting else None)]
    assert [own.status for own in outcomes] == ["stopped", "stopped"]
    assert [place.stops for place in places.places] == [1, 1]
    assert len(waiting) == 1


@pytest.mark.parametrize("on", ["", "Ray", "ray:", "rays:1", "processes:2"])
def test_places_that_do_not_exist_are_refused(on: str) -> None:
    with pytest.raises(ConfigError, match=r"should be processes, ray, ray:auto or ray:HOST:PORT"):
        StudyOptions.read({"on": on}, "the study")
    assert [on_ray(own) for own in ("processes", "ray", "ray:auto", "ray:10.0.0.1:6379")] == [False, True, True, True]


def test_what_makes_no_sense_on_a_cluster_is_refused(tmp_path: Path, cli: Any, words: list[str]) -> None:
    plan = make_plan({"game": "treasurehunt", "engine": "ray"})
    with pytest.raises(ConfigError, match="choose another engine"):
        open_places("ray", 2, tmp_path, [plan])
    alone = cli("train", *words, "--on", "ray")
    assert (alone.code, "give --seeds N too" in alone.err) == (2, True)
    nobody = cli("train", *words, "--seeds", 2, "--on", "ray:127.0.0.1:1", "--out", tmp_path / "study")
    assert (nobody.code, "no Ray cluster answers there" in nobody.err) == (2, True)
    assert not [*(tmp_path / "study").glob(".seen-*")]


def test_on_a_cluster_a_run_has_the_threads_that_it_claims(tmp_path: Path) -> None:
    """Neither the cores of this machine nor the number of runs that are left decide."""
    for settings, threads in (({}, 1), ({"n_workers": 3}, 3), ({"actor_cpus": 2}, 2)):
        options = {"settings": {"game": "treasurehunt", **settings}, "seeds": 40, "on": "ray:auto"}
        made = Design.of(StudyOptions.read(options, "the study"))
        schedule = RunSchedule(made.runs, {own.name: tmp_path / own.name for own in made.runs}, made)
        assert schedule.side_by_side == 40
        first = schedule.next_trial(0)
        assert first is not None
        assert first.n_workers == threads


def test_a_trial_waits_for_the_process_that_had_it_before(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial("one", tmp_path / "run", {"game": "treasurehunt", **tiny}, tiny["total_episodes"], n_workers=1)
    trial.folder.mkdir()
    (trial.folder / LOCK).touch()
    holder = (trial.folder / LOCK).open("a")
    fcntl.flock(holder, fcntl.LOCK_EX)
    assert is_held(trial.folder)
    release = threading.Timer(0.5, holder.close)
    release.start()
    assert run_trial(trial).status == "finished"
    release.join()
    # A process on another machine does not show its lock, only its name, which it leaves behind if it is killed.
    assert not is_held(trial.folder)
    (trial.folder / LOCK).write_text("another-machine")
    assert is_held(trial.folder)
    monkeypatch.setattr(trial_module, "RELEASE_S", 0.2)
    assert run_trial(trial).status == "finished"
    with locked(trial.folder):
        assert is_held(trial.folder)


@pytest.mark.promise
def test_a_host_that_nobody_asks_saves_and_ends_its_trial(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine that is cut off: the trial runs again elsewhere, so it must not go on here."""
    monkeypatch.setitem(vars(sys.modules["__main__"]), "__file__", None)  # the host removes it
    monkeypatch.setattr(ray_host, "LEASE_S", 3.0)
    settings = {"game": "treasurehunt", **tiny, "total_episodes": 30000, "checkpoint_every": 30000}
    trial = Trial("one", tmp_path / "run", settings, 30000, n_workers=1)
    seen = tmp_path / "seen"
    host = TrialHost([], str(tmp_path), str(seen), {})
    host.run(pickle.dumps(trial))
    wait_until(
        lambda: bool([own for data in host.poll().messages if isinstance(own := pickle.loads(data), TrialProgress)])
    )
    wait_until(lambda: not is_held(trial.folder))  # nobody asks meanwhile
    report = host.poll()
    assert report.lease_over
    assert report.messages == ()
    assert remuda.Run(trial.folder).checkpoints(), "it saved before it ended"
    assert host.poll() == ray_host.HostReport()  # it has nothing to do, and answers


def wait_until(happened: Callable[[], bool]) -> None:
    limit = time.monotonic() + LIMIT_S
    while not happened():
        assert time.monotonic() < limit
        time.sleep(0.05)
