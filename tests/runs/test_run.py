"""A run: what its directory holds, and what training promises besides the weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import remuda
from remuda.core.errors import RunError
from remuda.core.yamlfile import read_yaml
from remuda.runs import checkpoint
from remuda.runs.evaluation import evaluate_policies
from remuda.runs.film import trained_bindings

GAME_METRICS = {"return", "gems", "food", "bones", "bumps"}
LEARNING = {"loss", "grad_norm", "epsilon"}
FULL = {"evaluate_every": 6, "checkpoint_every": 3, "keep_checkpoints": 2, "pictures": True}


@pytest.fixture(scope="module")
def full(trained: Any) -> remuda.Run:
    """A run with everything switched on."""
    run = trained(**FULL)
    assert isinstance(run, remuda.Run)
    return run


def sha(run: remuda.Run) -> str:
    result: str = run.result["weights_sha256"]
    return result


def test_the_directory_has_everything(full: remuda.Run) -> None:
    names = {path.name for path in full.path.iterdir() if not path.name.startswith(".")}
    assert names == {
        "config.yaml", "metrics.csv", "evaluations.csv", "tensorboard", "checkpoints", "best", "result.json",
        "console.log", "curve.png", "herd.gif", "system.csv", "films", "lanes",
    }  # fmt: skip


def test_the_config_reproduces_the_run(full: remuda.Run, tmp_path: Path) -> None:
    again = remuda.train(out=tmp_path / "again", quiet=True, **read_yaml(full.path / "config.yaml"))
    assert sha(again) == sha(full)
    assert again.plan == full.plan


def test_metrics_are_tables_with_a_row_per_round_and_agent(full: remuda.Run) -> None:
    table = full.metrics
    assert set(table) >= GAME_METRICS | LEARNING
    assert table["round"].tolist() == [1, 1, 2, 2, 3, 3, 4, 4]
    assert table["episodes"].tolist() == [3, 3, 6, 6, 9, 9, 12, 12]
    assert table["agent"].tolist() == [0, 1] * 4
    assert table["player"].tolist() == ["iqn"] * 8
    assert table["agent_steps"].tolist() == [72, 72, 144, 144, 216, 216, 288, 288]
    for name in GAME_METRICS | LEARNING:
        assert np.isfinite(table[name]).all(), name
    assert len(set(table["loss"])) == 8, "every agent has a loss of its own"


def test_the_return_is_what_the_items_are_worth(trained: Any) -> None:
    """With walls and agents worth nothing, gems, food and bones explain every point."""
    table = trained(wall=0.0).metrics
    worth = 10 * table["gems"] + 5 * table["food"] - 10 * table["bones"]
    np.testing.assert_allclose(table["return"], worth, rtol=1e-4, atol=1e-4)
    assert table["return"].any()


def test_evaluations_are_tables_too(full: remuda.Run) -> None:
    table = full.evaluations
    assert set(table) >= GAME_METRICS | {"return_se", "game_return"}
    assert table["game_return"].tolist() == table["return"].tolist()
    assert table["episodes"].tolist() == [6, 6, 12, 12]
    assert full.result["evaluation"]["mean_return"] == pytest.approx(table["return"][-2:].tolist(), rel=1e-4)


def test_mean_returns_are_those_of_the_last_and_first_tenth(full: remuda.Run) -> None:
    returns = full.metrics["return"].reshape(-1, 2)
    assert full.result["mean_return"] == pytest.approx(returns[-1].tolist())
    assert full.result["first_mean_return"] == pytest.approx(returns[0].tolist())


def test_tensorboard_has_every_metric_of_every_agent(full: remuda.Run) -> None:
    store = EventAccumulator(str(full.path / "tensorboard"), {"scalars": 0})
    store.Reload()
    tags = ("foragers0", "foragers1", "mean")
    wanted = {f"train/{name}/{tag}" for name in GAME_METRICS | LEARNING for tag in tags}
    wanted |= {f"evaluate/{name}/{tag}" for name in GAME_METRICS | {"return_se", "game_return"} for tag in tags}
    assert set(store.Tags()["scalars"]) == wanted
    events = store.Scalars("train/loss/foragers1")
    assert [event.step for event in events] == [3, 6, 9, 12]
    table = full.metrics
    np.testing.assert_allclose([event.value for event in events], table["loss"][table["agent"] == 1], rtol=1e-4)
    means = [event.value for event in store.Scalars("train/return/mean")]
    np.testing.assert_allclose(means, table["return"].reshape(-1, 2).mean(axis=1), rtol=1e-4)


def test_the_last_checkpoints_and_the_best_are_kept(full: remuda.Run) -> None:
    assert [path.name for path in full.checkpoints()] == ["000000012", "000000009"]
    assert all(checkpoint.intact(path) for path in (*full.checkpoints(), full.path / "best"))
    assert checkpoint.read_index(full.path / "best")["total_return"] == pytest.approx(
        full.evaluations["return"].reshape(-1, 2).sum(axis=1).max(), rel=1e-4
    )


def test_the_pictures_can_be_opened(full: remuda.Run) -> None:
    with Image.open(full.path / "curve.png") as curve:
        curve.load()
        assert curve.format == "PNG"
        assert len(curve.convert("L").getcolors() or []) > 10, "nothing is drawn"
    with Image.open(full.path / "herd.gif") as film:
        assert film.format == "GIF"
        assert film.n_frames > 1


def test_the_console_log_tells_the_story(full: remuda.Run) -> None:
    log = (full.path / "console.log").read_text()
    for words in ("2 agents", "MiB for replay", "episodes 12/12", "evaluation: total return", "checkpoint at 12"):
        assert words in log


def test_a_mixed_herd_gets_its_pictures(trained: Any, train: Any) -> None:
    players = {"1": "random", "2": f"frozen:{trained().path}/0"}
    run = train(agents=3, learners=players, pictures=True)
    assert (run.path / "curve.png").is_file()
    assert (run.path / "herd.gif").is_file()


def test_quiet_is_quiet(train: Any, capfd: pytest.CaptureFixture[str]) -> None:
    train()
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


def test_a_directory_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"is not a run: it has no config\.yaml$"):
        remuda.Run(tmp_path)


def test_a_study_is_answered_with_its_runs(tmp_path: Path) -> None:
    for seed in range(6):
        folder = tmp_path / "runs" / "plain" / f"seed-{seed}"
        folder.mkdir(parents=True)
        (folder / "config.yaml").touch()
    with pytest.raises(RunError, match=r"runs near it: .*runs/plain/seed-0, .*seed-2, …$"):
        remuda.Run(tmp_path)


def test_an_engine_that_does_not_wait_says_that_its_weights_cannot_be_repeated(train: Any) -> None:
    said = "weights are not repeatable on this engine: add --deterministic"
    for engine, deterministic in (("threads", False), ("threads", True), ("vectorized", False)):
        run = train(f"{engine}-{deterministic}", engine=engine, deterministic=deterministic, n_workers=1)
        log = (run.path / "console.log").read_text()
        assert (said in log) == (engine == "threads" and not deterministic)


def test_the_callback_sees_every_agent_and_can_stop(train: Any) -> None:
    seen: list[list[dict[str, Any]]] = []

    def watch(rows: list[dict[str, Any]]) -> bool | None:
        seen.append(rows)
        return False if len(seen) == 2 else None

    run = train(callback=watch)
    assert [[(row["round"], row["agent"]) for row in rows] for rows in seen] == [[(1, 0), (1, 1)], [(2, 0), (2, 1)]]
    assert set(seen[0][0]) >= GAME_METRICS | LEARNING
    assert run.result["finished"] is False
    assert run.result["episodes"] == 6
    assert run.result["updates_per_agent"] == [6, 6]
    assert run.checkpoint().name == "000000006"


def test_a_callback_that_raises_is_heard(train: Any) -> None:
    def fail(rows: list[dict[str, Any]]) -> None:
        raise ZeroDivisionError("in the callback")

    with pytest.raises(ZeroDivisionError, match="in the callback"):
        train(callback=fail, lag=1)
    assert not [
        thread.name for thread in threading.enumerate() if thread.name.startswith(("learn", "collect", "train"))
    ]


@pytest.mark.parametrize("lag", [0, 1])
def test_evaluation_does_not_change_training(trained: Any, lag: int) -> None:
    """Nor do how often it is saved, and how many episodes an evaluation has."""
    hashes = {
        sha(trained(lag=lag, **change))
        for change in (
            {},
            {"evaluate_every": 3},
            {"evaluate_every": 4, "evaluate_episodes": 7},
            {"checkpoint_every": 99},
        )
    }
    assert len(hashes) == 1


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("rate", [0.4, 1.0, 2.5])
def test_every_engine_does_the_work_of_the_plan(trained: Any, engine: str, rate: float) -> None:
    """Invariant 3."""
    run = trained(engine=engine, updates_per_episode=rate, episodes_per_update=2)
    assert run.result["updates_per_agent"] == [int(12 * rate)] * 2
    assert run.result["agent_steps"] == 12 * 12 * 2


@pytest.mark.parametrize("change", [{"engine": "sequential"}, {"n_workers": 2}, {"n_workers": 2, "lag": 1}], ids=str)
def test_torch_has_one_thread_while_training_and_its_own_afterwards(train: Any, change: dict[str, Any]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        during: list[int] = []
        train(callback=lambda rows: during.append(torch.get_num_threads()), **change)
        assert during == [1] * 4
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


THREADS = """
import json, os, sys, threading, time
import remuda
try:
    import scipy.linalg  # numba loads it, if it is there, and its BLAS starts threads that nobody uses
except ImportError:
    pass

def hidden():
    # Threads that are not Python's: those a library started to share its work.
    return len(os.listdir("/proc/self/task")) - threading.active_count()

def sample():
    while not done.is_set():
        seen.append(hidden())
        time.sleep(0.0002)

def last(rows):
    if rows[0]["round"] == 4:
        done.set()
        sampler.join()

done, seen, before = threading.Event(), [], hidden()
sampler = threading.Thread(target=sample)
sampler.start()
remuda.train("treasurehunt", out=sys.argv[1], quiet=True, callbacks=[last], **json.loads(sys.argv[2]))
print(before, max(seen), len(seen))
"""


@pytest.mark.promise
@pytest.mark.parametrize("change", [{"n_workers": 2}, {"n_workers": 2, "lag": 1}], ids=str)
def test_no_library_starts_threads_of_its_own(tiny: dict[str, Any], tmp_path: Path, change: dict[str, Any]) -> None:
    """Invariant 7: the engine's threads are all there are; each of them does its own arithmetic.

    The networks are wide enough for a library to think that sharing pays.
    """
    settings = {**tiny, "layer": 128, "batch_size": 64, **change}
    command = [sys.executable, "-c", THREADS, str(tmp_path / "run"), json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    before, peak, samples = map(int, done.stdout.split())
    assert samples > 10
    assert peak <= before


def test_values_may_differ_per_agent(trained: Any) -> None:
    table = trained(lr=[1e-3, 0.0], epsilon=[0.3, "1:0:0.5"]).metrics
    first, second = (table["epsilon"][table["agent"] == agent].tolist() for agent in range(2))
    assert first == pytest.approx([0.3] * 4)
    assert second == pytest.approx([0.5, 0.0, 0.0, 0.0])


def test_an_agent_without_a_learning_rate_stays_as_it_was(train: Any) -> None:
    run = train(lr=[1e-3, 0.0], keep_checkpoints=99, checkpoint_every=3)
    newest, *_, oldest = (checkpoint.read(path, "policy") for path in run.checkpoints())
    assert all((newest[name] == oldest[name]).all() for name in newest if name.startswith("1/"))
    assert any((newest[name] != oldest[name]).any() for name in newest if name.startswith("0/"))


def test_a_scheduled_learning_rate_counts(trained: Any) -> None:
    assert len({sha(trained(lr=lr)) for lr in (1e-3, "1e-3:1e-3", "1e-3:1e-5", "1e-3:1e-5:0.5")}) == 3


def test_bf16_learns_and_is_not_fp32(trained: Any) -> None:
    run = trained(precision="bf16")
    weights = checkpoint.read(run.checkpoint(), "policy")
    assert all(np.isfinite(array).all() for array in weights.values())
    assert sha(run) != sha(trained())


BODY = """
import torch
from torch import nn

class Body(nn.Module):
    def __init__(self, obs_shape, frames, width):
        super().__init__()
        size = frames * torch.Size(obs_shape).numel()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(size, 13), nn.Tanh(), nn.Linear(13, width))

    def forward(self, x):
        return self.layers(x)

class Narrow(Body):
    def forward(self, x):
        return super().forward(x)[:, :-1]
"""


@pytest.fixture
def own_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_body.py").write_text(textwrap.dedent(BODY))
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("own_body")
@pytest.mark.parametrize("lag", [0, 1])
def test_a_body_of_ones_own_trains_the_same_everywhere(train: Any, trained: Any, lag: int) -> None:
    plan = {"body": "own_body:Body", "worlds": 5, "total_episodes": 15, "lag": lag}
    one_by_one = train("a", engine="sequential", **plan)
    together = train("b", engine="vectorized", n_workers=2, **plan)
    assert sha(one_by_one) == sha(together) != sha(trained(worlds=5, total_episodes=15, lag=lag))
    names = set(checkpoint.read(one_by_one.checkpoint(), "policy"))
    assert "0/body.layers.1.weight" in names
    first, second = (checkpoint.read(one_by_one.checkpoint(), "policy")[f"{i}/body.layers.1.weight"] for i in range(2))
    assert (first != second).all(), "each agent has a body of its own"


@pytest.mark.usefixtures("own_body")
def test_a_body_goes_on_where_it_stopped(train: Any) -> None:
    whole = train("whole", body="own_body:Body")
    stopped = train("stopped", callback=lambda rows: rows[0]["round"] < 2, body="own_body:Body")
    assert sha(remuda.resume(stopped.path, quiet=True)) == sha(whole)


@pytest.mark.usefixtures("own_body")
def test_a_body_of_the_wrong_shape_is_one_sentence(train: Any, tmp_path: Path) -> None:
    with pytest.raises(remuda.RemudaError, match=r"body='own_body:Narrow' maps .* it should give \(16, 16\)"):
        train(body="own_body:Narrow")
    assert not (tmp_path / "run").exists()


@pytest.mark.promise
def test_the_first_start_says_that_it_compiles_and_the_second_does_not(tmp_path: Path, words: list[str]) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    said = []
    for name in ("first", "second"):
        command = [sys.executable, "-m", "remuda", "train", *words, "--out", str(tmp_path / name)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
        said.append("compiling treasurehunt" in done.stderr)
    assert said == [True, False]


@pytest.mark.promise
def test_the_first_start_of_a_learner_says_that_it_compiles(tmp_path: Path) -> None:
    """An environment of another library has no kernels, so the learner's are all there is to wait for."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    words = ["gymnasium:CartPole-v1", "learner=ppo", "worlds=2", "total_episodes=2", "engine=vectorized"]
    said = []
    for name in ("first", "second"):
        command = [sys.executable, "-m", "remuda", "train", *words, "pictures=false", "--out", str(tmp_path / name)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
        said.append("compiling ppo" in done.stderr)
    assert said == [True, False]


def test_evaluation_after_training_plays_episodes_that_chose_nothing(trained: Any) -> None:
    run = trained()
    scores = evaluate_policies(run.plan, run.spec, trained_bindings(run), run.plan.evaluate_episodes)
    again = evaluate_policies(
        run.plan.model_copy(update={"n_workers": 2}), run.spec, trained_bindings(run), run.plan.evaluate_episodes
    )
    assert np.array_equal(scores.returns, again.returns), "the same episodes, however they are shared out"
    assert scores.returns.mean(axis=0).tolist() != run.result["evaluation"]["mean_return"]
