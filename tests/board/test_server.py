"""The board's server: what it lists and sends, how little it sends, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import pytest
from board_client import Client

import remuda
from remuda.board import control
from remuda.board.catalogue import Catalogue
from remuda.board.server import Board, BoardServer
from remuda.board.tables import ColumnCache, CurveRequest, curve, six_digits
from remuda.core.errors import ConfigError, RunError
from remuda.core.lanes import BIN_S

DEEP_YAML, DEEP_JSON = b"[" * 1_000_000, b'{"a":' * 400 + b"1" + b"}" * 400
LONG_CELL = b'round,return,agent\n1,"' + b"x" * 200_000 + b'",0\n'
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'


def test_a_run_is_listed_with_what_it_did(board: Client) -> None:
    (run,) = board.json("/api/runs")["runs"]
    assert (run["id"], run["game"], run["status"]) == ("run", "treasurehunt", "finished")
    assert (run["episodes"], run["total"], run["agents"]) == (12, 12, 2)


def test_a_run_of_another_machine_is_under_way_while_its_files_change(board: Client, folder: Path) -> None:
    """On a shared folder the lock of another machine is not seen; what stands in it is."""
    run = folder / "run"

    def status() -> str:
        (found,) = board.json("/api/runs")["runs"]
        return str(found["status"])

    (run / ".lock").write_text("node-7")
    assert status() == "running"
    for path in (run, *run.iterdir()):
        os.utime(path, (0, 0))
    assert status() == "interrupted"
    (run / ".lock").write_text(socket.gethostname())  # of this machine, where nobody holds it
    assert status() == "interrupted"
    (run / ".lock").write_text("")
    assert status() == "finished"


def test_curves_are_those_of_the_table(board: Client, folder: Path) -> None:
    own = remuda.Run(folder / "run")
    found = board.json("/api/curve", id="run", table="metrics.csv", metric="return", x="episodes")
    returns = own.metrics["return"].reshape(-1, 2)
    assert found["x"] == own.metrics["episodes"][::2].tolist()
    assert found["mean"] == pytest.approx(returns.mean(axis=1), rel=1e-5)
    assert found["agents"][1] == pytest.approx(returns[:, 1], rel=1e-5)
    part = board.json("/api/curve", id="run", table="metrics.csv", metric="return", x="episodes", first=4, last=9)
    assert part["x"] == [6.0, 9.0]


def test_a_run_has_its_plan_films_and_commands(board: Client, folder: Path) -> None:
    run = board.json("/api/run", id="run")
    assert run["config"]["options"]["agents"] == 2
    assert run["films"][0] == 0
    assert f"remuda resume {folder / 'run'}" in run["commands"]["resume"]
    film = board.json("/api/film", id="run", episodes=run["films"][-1])
    assert len(film["turns"]) == 13


def test_numbers_are_sent_with_six_digits() -> None:
    values = np.array([0.0, -1 / 3, 123456.789, 1234567.89, 1e-9 / 7, 9.9999999, np.nan, np.inf, 1e300])
    expected = [0.0, -0.333333, 123457.0, 1234570.0, 1.42857e-10, 10.0, None, None, 1e300]
    assert six_digits(values) == [None if own is None else pytest.approx(own, rel=1e-9) for own in expected]
    assert len(json.dumps(six_digits(values[:6]))) < 70


def test_rows_that_are_added_are_sent(folder: Path) -> None:
    cache = ColumnCache(folder)
    asked = CurveRequest("run", "metrics.csv", "return", "episodes")
    before = curve(cache, asked)["rows"]
    table = folder / "run" / "metrics.csv"
    header, *lines = table.read_text().splitlines()
    with table.open("a") as file:
        file.write("\n".join(lines[:2]) + "\n" + lines[0][:9])  # the last line is not complete yet
    assert curve(cache, asked)["rows"] == before + 1
    table.write_text("\n".join([header, *lines[:2]]) + "\n")  # a run that goes on writes its tables anew
    assert curve(cache, asked)["rows"] == 1


@pytest.mark.promise
def test_a_million_rows_are_sent_as_few_numbers(board: Client, folder: Path) -> None:
    rows = np.arange(250_000)
    values = np.sin(rows / 5000)
    lines = [f"{r},{r},{r},{r}.5,all,{a},iqn,{v:.6g}\n" for r, v in zip(rows, values, strict=True) for a in range(4)]
    (folder / "run" / "metrics.csv").write_text(
        "round,episodes,agent_steps,wall_s,group,agent,player,return\n" + "".join(lines)
    )
    query = urlencode({"id": "run", "table": "metrics.csv", "metric": "return", "points": 100_000})
    status, _, body = board.ask(f"/api/curve?{query}")
    assert status == 200
    assert len(body) < 250_000
    found = json.loads(body)
    assert found["rows"] == 250_000
    assert max(found["high"]) == pytest.approx(1, abs=1e-4)  # thinning keeps the extremes
    assert min(found["low"]) == pytest.approx(-1, abs=1e-4)


def test_five_hundred_runs_are_listed_and_looked_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(500):
        run = folder / "many" / f"run-{number:03d}"
        run.mkdir(parents=True)
        for name in ("config.yaml", "metrics.csv", "result.json"):
            shutil.copy(folder / "run" / name, run / name)
    catalogue = Catalogue(folder)
    assert len(catalogue.listing()["runs"]) == 501
    monkeypatch.setattr("remuda.board.catalogue.summarise", lambda *_: pytest.fail("nothing has changed"))
    assert len(catalogue.listing()["runs"]) == 501


def test_lanes_show_what_each_thread_did(board: Client, folder: Path) -> None:
    own = board.json("/api/system", id="run")["lanes"]["lanes"]
    assert {"collect", "learn"} <= {kind for lane in own for kind in lane["kinds"]}
    lanes = folder / "run" / "lanes"
    for old in lanes.iterdir():
        old.unlink()
    lines = [{"process": HOSTILE}, ["main", 7, {"wait": BIN_S / 2}], ["main", 9, {"collect": 9e9}]]
    (lanes / "1.jsonl").write_text(
        "\n".join(map(json.dumps, lines)) + '\nnonsense\n[1]\n["main", 8, {"wait": "NaN"}]\n['
    )
    (lane,) = board.json("/api/system", id="run")["lanes"]["lanes"]
    assert lane["process"] == HOSTILE
    assert lane["kinds"]["wait"][-3:] == [50, 0, 0]
    assert lane["kinds"]["collect"][-3:] == [0, 0, 100]


def test_a_study_is_shown_with_its_plan_and_its_failures(board: Client, folder: Path) -> None:
    study = folder / "a study"
    shutil.copytree(folder / "run", study / "runs" / "lr=0.1" / "seed-0")
    (study / "study.yaml").write_text("seeds: 3\nvariants: {a: {}, b: {}}\ngrid: {lr: [0.1, 0.2]}\nmetric: gems\n")
    (study / "study.json").write_text(json.dumps({"failed": {HOSTILE: "it broke"}}))
    found = board.json("/api/runs")
    assert found["studies"] == [{"id": "a study", "kind": "study"}]
    assert "a study/runs/lr=0.1/seed-0" in [run["id"] for run in found["runs"]]
    shown = board.json("/api/study", id="a study")
    assert (shown["planned"], shown["metric"], shown["failed"]) == (12, "gems", {HOSTILE: "it broke"})
    assert board.ask("/api/study?id=run")[0] == 404


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{[", b'{"options": 1, "trials": 2, "outcomes": {}}', b"a: &a [*a]", DEEP_YAML, DEEP_JSON],
    ids=range(7),
)
@pytest.mark.parametrize("file", ["study.yaml", "study.json", "sweep.json", "search.json", "tournament.json"])
def test_damaged_studies_do_not_stop_the_board(board: Client, folder: Path, file: str, content: bytes) -> None:
    (folder / "odd").mkdir()
    (folder / "odd" / file).write_bytes(content)
    assert [study["id"] for study in board.json("/api/runs")["studies"]] == ["odd"]
    assert board.json("/api/study", id="odd")["rows"] == []


def test_a_sweep_is_shown_with_its_trials(board: Client, folder: Path) -> None:
    (folder / "sweep").mkdir()
    trial = {
        "number": 0,
        "values": {"lr": 0.01234567},
        "status": "pruned",
        "score": -1.5,
        "episodes": 40,
        "why": "rung",
    }
    state = {"options": {"trials": 9, "metric": "gems"}, "trials": [trial]}
    (folder / "sweep" / "sweep.json").write_text(json.dumps(state))
    shown = board.json("/api/study", id="sweep")
    assert shown["head"] == ["trial", "status", "score", "episodes", "lr", "why"]
    assert shown["rows"] == [["0", "pruned", "-1.5", "40", "0.01235", "rung"]]
    assert shown["planned"] == 9


def test_only_loopback_listens(board: Client) -> None:
    """The kernel's tables of listening sockets."""
    listening = [
        words[1]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
        if (words := line.split())[3] == "0A"
    ]
    ours = [address for address in listening if address.endswith(f":{board.port:04X}")]
    assert ours == [f"0100007F:{board.port:04X}"]


def test_the_rest_of_the_world_needs_a_token(folder: Path) -> None:
    with pytest.raises(ConfigError, match="token"):
        BoardServer(Board(folder), "0.0.0.0")
    server = BoardServer(Board(folder, token="right"), "0.0.0.0")
    server.start()
    client = Client(server)
    assert client.ask("/api/runs")[0] == 403
    assert client.ask("/api/runs?token=wrong")[0] == 403
    assert client.ask("/api/runs?token=%C3%A9%F0%9F%90%8E")[0] == 403  # not ASCII
    status, headers, _ = client.ask("/api/runs?token=right")
    assert status == 200
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert client.ask("/api/runs", Cookie=cookie.split(";")[0])[0] == 200
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Host": "evil.example"},
        {"Host": "evil.example:8410"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},  # another port of this machine
    ],
)
def test_other_sites_are_refused(board: Client, headers: dict[str, str]) -> None:
    status, _, body = board.ask("/api/runs", **headers)
    assert status == 403
    assert b"treasurehunt" not in body


@pytest.mark.parametrize(
    "name", ["../secret.txt", "run/../../secret.txt", "/etc/passwd", "..", "run/..", "\0", "a\\..", ""]
)
def test_names_that_lead_out_are_not_found(board: Client, name: str) -> None:
    for path in ("/api/run", "/api/system", "/api/curve", "/api/film", "/api/study", "/page"):
        query = {"id": name, "table": "metrics.csv", "metric": "return", "episodes": "0", "file": "secret.txt"}
        assert board.ask(f"{path}?{urlencode(query)}")[0] == 404
    for query in (
        {"id": "run", "table": f"../{name}", "metric": "return"},
        {"id": "run", "table": "../../secret.csv", "metric": "return"},
    ):
        assert board.ask(f"/api/curve?{urlencode(query)}")[0] == 404
    assert board.ask(f"/api/film?{urlencode({'id': 'run', 'episodes': name})}")[0] == 404
    for path in (
        f"/{name}".replace("\0", "%00"),
        "/../secret.txt",
        "/static/../server.py",
        "//etc/passwd",
        "/..%2fsecret.txt",
    ):
        if path != "/":
            assert b"secret" not in board.ask(path)[2]


def test_links_and_pipes_in_a_run_are_not_followed(board: Client, folder: Path) -> None:
    run = folder / "run"
    for name, target in (("metrics.csv", "secret.csv"), ("console.log", "secret.txt"), ("result.json", "secret.txt")):
        (run / name).unlink()
        (run / name).symlink_to(folder.parent / target)
    shutil.rmtree(run / "films")
    (run / "films").symlink_to(folder.parent)
    (folder.parent / "000000001.json").write_text('"secret"')
    (run / "system.csv").unlink()
    os.mkfifo(run / "system.csv")  # whoever opens it for reading waits for ever
    (folder / "linked").symlink_to(run)
    found = board.json("/api/runs")
    assert [own["id"] for own in found["runs"]] == ["run"]
    texts = [
        json.dumps(found),
        json.dumps(board.json("/api/run", id="run")),
        json.dumps(board.json("/api/system", id="run")),
    ]
    texts.append(json.dumps(board.json("/api/curve", id="run", table="metrics.csv", metric="return")))
    assert not any("secret" in text or "4242" in text for text in texts)
    assert board.ask("/api/film?id=run&episodes=1")[0] == 404


def test_answers_forbid_the_browser_to_run_what_did_not_come_with_remuda(board: Client, folder: Path) -> None:
    (folder / "study.html").write_text(HOSTILE)
    for path in ("/", "/api/runs", "/app.js"):
        policy = board.ask(path)[1]["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
    status, headers, _ = board.ask("/page?id=.&file=study.html")
    assert status == 200
    assert headers["Content-Security-Policy"].startswith("sandbox; default-src 'none'")
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    ("path", "method", "headers"),
    [
        ("/api/runs?" + "&".join(["a=1"] * 50), "GET", {}),
        ("/api/runs", "GET", {"Host": "["}),
        ("/api/stop", "POST", {"Content-Length": "9" * 5000}),
        ("/api/stop", "POST", {"Content-Length": "\xb2"}),
    ],
)
def test_requests_that_nobody_can_read_are_answered(
    board: Client, path: str, method: str, headers: dict[str, str]
) -> None:
    assert board.ask(path, method, **headers)[0] in (403, 404)


@pytest.mark.parametrize("episodes", ["-1", "0", "1", "Infinity"])
def test_a_run_is_not_extended_to_fewer_episodes_than_it_has(folder: Path, episodes: str) -> None:
    server = BoardServer(Board(folder, allow_control=True))
    server.start()
    client = Client(server)
    token = client.json("/api/control")["token"]
    body = f'{{"id": "run", "total_episodes": {episodes}}}'.encode()
    status, _, answer = client.ask("/api/extend", "POST", body, **{"X-Remuda-Control": token})
    server.shutdown()
    server.server_close()
    assert (status, b"error" in answer) == (404 if episodes == "Infinity" else 409, True)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_without_allow_control_no_request_changes_anything(board: Client, folder: Path, method: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    body = json.dumps({"id": "run", "total_episodes": 99}).encode()
    for path in ("/api/stop", "/api/extend", "/api/control", "/api/runs", "/"):
        status, _, answer = board.ask(path, method, body, **{"X-Remuda-Control": "guess"})
        assert status in (403, 501), (path, status, answer)
    assert board.json("/api/control") == {"token": None}
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_control_needs_the_token_of_this_board(folder: Path) -> None:
    server = BoardServer(Board(folder, allow_control=True))
    server.start()
    client = Client(server)
    body = json.dumps({"id": "run"}).encode()
    assert client.ask("/api/stop", "POST", body)[0] == 403
    token = client.json("/api/control")["token"]
    assert client.ask("/api/stop", "POST", body, Origin="http://evil.example", **{"X-Remuda-Control": token})[0] == 403
    status, _, answer = client.ask("/api/stop", "POST", body, **{"X-Remuda-Control": token})
    assert status == 409
    assert b"not being trained" in answer
    server.shutdown()
    server.server_close()


def test_only_a_process_that_trains_the_run_is_stopped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a process held a lock on another disk, on a file with the same inode."""
    lock = folder / "run" / ".lock"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        monkeypatch.setattr(control, "lock_holders", lambda: {lock.stat().st_ino: other.pid})
        with pytest.raises(RunError, match="run is not being trained"):
            control.stop(folder, "run")
        with lock.open():  # this process has it open
            monkeypatch.setattr(control, "lock_holders", lambda: {lock.stat().st_ino: os.getpid()})
            stopped: list[int] = []
            monkeypatch.setattr(os, "kill", lambda process, _: stopped.append(process))
            control.stop(folder, "run")
        assert stopped == [os.getpid()]
        assert other.poll() is None
        other.communicate(b"\n")
        assert other.returncode == 0


@pytest.mark.promise
@pytest.mark.parametrize(
    "file", ["config.yaml", "metrics.csv", "evaluations.csv", "system.csv", "result.json", "console.log"]
)
@pytest.mark.parametrize(
    "content",
    [
        b"", b"\0" * 100, b"{[" * 5000, b"\xff\xfe,\n,,,\n", b"round,return,agent\nx,y,z\n", b"[1]", b"a: &a [*a]\n",
        DEEP_YAML, DEEP_JSON, LONG_CELL,
    ],
    ids=range(10),
)  # fmt: skip
def test_damaged_files_do_not_stop_the_board(board: Client, folder: Path, file: str, content: bytes) -> None:
    (folder / "run" / file).write_bytes(content)
    (run,) = board.json("/api/runs")["runs"]
    assert run["id"] == "run"
    board.json("/api/run", id="run")
    board.json("/api/system", id="run")
    for table in ("metrics.csv", "evaluations.csv", "system.csv"):
        board.json("/api/curve", id="run", table=table, metric="return")


def test_a_port_that_is_taken_is_said(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="--port"):
            BoardServer(Board(folder), port=taken.getsockname()[1])


def test_the_board_imports_nothing_heavy() -> None:
    code = "import sys, remuda.board.server; print({'torch', 'numba', 'matplotlib', 'scipy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
