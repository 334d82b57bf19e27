"""The board in a real browser (Chromium), while a training runs that the test starts. `make browser` installs it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from browsing import COUNT_PICTURES, HOSTILE, PATIENCE_MS, mean_line, wait_until
from playwright.sync_api import Page, expect

import proc
import remuda
from remuda.board.server import Board, BoardServer

CONTENT = {
    "herd": ".scores li",
    "curves": "path[data-series]",
    "time": "#panel .stat",
    "trouble": "#panel p",
    "plan": "tbody tr",
}
"""What a tab shows when its answer has come."""
SETTINGS = (
    "agents=2", "height=9", "width=9", "turns=20", "spawn=0.1", "layer=16", "quantiles=4", "acting_quantiles=4",
    "batch_size=8", "replay_size=512", "worlds=4", "total_episodes=1000000", "evaluate_every=40",
    "evaluate_episodes=4", "engine=vectorized", "device=cpu",
)  # fmt: skip


@pytest.fixture(scope="module")
def training(root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A training under way in a shell's background, of which the board knows nothing but its folder."""
    command = [sys.executable, "-m", "remuda", "train", "treasurehunt", *SETTINGS, "--out", str(root / "live")]
    process = subprocess.Popen(
        ["/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh", *command],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=root,
    )  # fmt: skip
    yield process
    process.terminate()
    process.wait(120)


def test_a_run_appears_and_its_curves_grow(page: Page, address: str, training: Any) -> None:
    page.goto(address)
    page.get_by_role("link", name="live").click()
    page.get_by_role("tab", name="Curves").click()
    expect(page.locator(".run.chosen .badge")).to_have_text("running")
    expect(page.locator('[data-series="mean of the herd"]').first).to_be_attached()
    before = mean_line(page)
    wait_until(
        page,
        "before => document.querySelector('[data-series=\"mean of the herd\"]').getAttribute('d').length > before",
        len(before) + 20,
    )
    lines = page.locator(".chart").first.locator("path[data-series]")
    for agent in (0, 1):
        expect(lines.nth(agent)).to_have_attribute("data-series", f"agent {agent}")
    for metric in ("return", "gems", "food", "bones", "bumps", "loss"):
        expect(page.locator(".chart h3 span:first-child").get_by_text(metric, exact=True)).to_be_visible()


def test_the_film_plays_pauses_and_is_scrubbed(page: Page, address: str, training: Any) -> None:
    page.goto(f"{address}#run=live&tab=herd")
    turn = page.locator("#turn")
    expect(turn).to_contain_text("of 20")
    first = turn.inner_text()
    expect(turn).not_to_have_text(first)
    page.get_by_role("button", name="pause").click()
    page.locator("#scrub").focus()
    page.keyboard.press("Home")
    expect(turn).to_have_text("turn 0 of 20")
    page.keyboard.press("ArrowRight")
    expect(turn).to_have_text("turn 1 of 20")
    colours = page.evaluate("""() => {
        const canvas = document.getElementById('film-now'), pen = canvas.getContext('2d');
        return new Set(Array.from(pen.getImageData(0, 0, canvas.width, canvas.height).data)).size;
    }""")
    assert colours > 10, "nothing is drawn"
    expect(page.locator("#film-now")).to_have_attribute("aria-label", re.compile("turn 1,"))
    expect(page.locator("#version-before")).to_have_value("0")
    expect(page.locator("#version-now")).to_have_value(re.compile("[1-9]"))  # an evaluated version, when there is one


def test_a_fast_film_has_few_pictures_while_something_trains(page: Page, address: str, training: Any) -> None:
    page.add_init_script(COUNT_PICTURES)
    page.goto(f"{address}#run=live&tab=herd")
    expect(page.locator("#turn")).to_contain_text("of 20")
    page.locator("#speed").select_option("32")
    page.wait_for_timeout(500)
    began, turn = page.evaluate("performance.now()"), page.locator("#turn").inner_text()
    wait_until(page, "began => performance.now() > began + 5000", began)
    drawn = page.evaluate("began => pictures.filter(when => began < when && when < began + 5000).length", began)
    assert 1 <= drawn <= 5 * 4 + 2  # at 32 turns a second there would be 20 in a film
    expect(page.locator("#turn")).not_to_have_text(turn)


def test_two_runs_lie_over_each_other(page: Page, address: str, training: Any) -> None:
    page.goto(f"{address}#run=live&tab=curves")
    page.get_by_label("put ended into the curves").check()
    expect(page.locator(".chart").first.locator('[data-series="ended"]')).to_be_attached()
    expect(page.locator(".chart").first.locator('[data-series="live"]')).to_be_attached()
    page.get_by_role("tab", name="Plan").click()
    page.get_by_label("only what differs").check()
    expect(page.locator("tbody tr.differs th", has_text="total_episodes")).to_be_visible()
    expect(page.locator("tbody th", has_text="options.agents")).to_have_count(0)


def test_the_board_opens_with_a_run_and_its_whole_field_is_in_sight(page: Page, address: str) -> None:
    page.set_viewport_size({"width": 1366, "height": 768})
    page.goto(address)
    expect(page.locator(".run").first).to_have_class("run chosen")
    page.goto(f"{address}#run=ended&tab=herd")
    expect(page.locator("#film-now")).to_have_attribute("aria-label", re.compile("turn"))
    for name in ("before", "now"):
        wait_until(
            page,
            """name => { const box = document.getElementById(`film-${name}`).getBoundingClientRect();
            return box.height > 250 && box.bottom < innerHeight; }""",
            name,
        )
    page.locator("h1 a").click()
    expect(page.get_by_text("Choose a run or a study")).to_be_visible()  # nobody is sent back


def test_a_run_without_values_says_so(page: Page, address: str, root: Path) -> None:
    run = root / "begun"
    shutil.copytree(root / "ended", run)
    for table in ("metrics.csv", "evaluations.csv"):
        (run / table).write_text((run / table).read_text().splitlines()[0] + "\n")
    page.goto(f"{address}#run=begun&tab=curves")
    expect(page.locator(".chart").first.get_by_text("no values yet")).to_be_visible()
    expect(page.locator(".legend").first).not_to_contain_text("evaluation")
    with (run / "metrics.csv").open("a") as file:
        file.write((root / "ended" / "metrics.csv").read_text().splitlines()[1] + "\n")
    expect(page.locator('[data-series="mean of the herd"]').first).to_be_attached()
    expect(page.locator(".chart").first.get_by_text("no values yet")).to_have_count(0)
    shutil.rmtree(run)


def test_an_agent_alone_is_no_herd_and_its_evaluations_say_how_they_were_played(
    page: Page, address: str, root: Path
) -> None:
    run = root / "alone"
    shutil.copytree(root / "ended", run)
    for table in ("metrics.csv", "evaluations.csv"):
        head, *rows = (run / table).read_text().splitlines()
        agent = head.split(",").index("agent")
        (run / table).write_text("\n".join([head, *(row for row in rows if row.split(",")[agent] == "0"), ""]))
    (run / "config.yaml").write_text("game: treasurehunt\nevaluate_mode: sampled\n")
    page.goto(f"{address}#run=alone&tab=curves")
    legend = page.locator(".legend").first
    expect(legend).to_contain_text("the agent")
    expect(legend).to_contain_text("evaluation (sampled), 95 %")
    expect(legend).not_to_contain_text("herd")
    shutil.rmtree(run)


def test_zoom_hover_log_axes_and_downloads(page: Page, address: str) -> None:
    page.goto(f"{address}#run=ended&tab=curves")
    chart = page.locator(".chart").first
    expect(chart.locator('[data-series="mean of the herd"]')).to_be_attached()
    box = chart.locator("svg").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    expect(chart.locator(".tip")).to_contain_text("mean of the herd")
    with page.expect_request(lambda request: "first=" in request.url):
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] - 30, box["y"] + 60, steps=4)
        page.mouse.up()
    page.get_by_label("log x").check()
    page.locator("#axis").select_option("wall_s")
    expect(chart.locator("text", has_text="time")).to_be_attached()
    with page.expect_download() as saved:
        chart.get_by_role("button", name="as CSV").click()
    lines = Path(saved.value.path()).read_text().splitlines()
    assert lines[0] == "series,wall_s,return"
    assert any(line.startswith("agent 1,") for line in lines)
    with page.expect_download() as saved:
        chart.get_by_role("button", name="as SVG").click()
    assert Path(saved.value.path()).read_text().startswith("<svg")


def test_a_failure_appears_with_its_command(page: Page, address: str, root: Path) -> None:
    page.goto(f"{address}#run=ended&tab=trouble")
    expect(page.get_by_text("No episode has failed.")).to_be_visible()
    folder = root / "ended" / "failures"
    folder.mkdir()
    record = {"purpose": "train", "exploration": None, "episodes": [7], "worlds": [1], "seed": 0, "worker": "actor 1",
              "turn": 3, "message": "the game raised KeyError", "traceback": "Traceback …"}  # fmt: skip
    (folder / "0001.json").write_text(json.dumps(record))
    expect(page.get_by_text("the game raised KeyError")).to_be_visible()
    expect(page.locator("code", has_text=f"remuda replay {root / 'ended'} --failure 1")).to_be_visible()


def test_where_time_goes(page: Page, address: str, training: Any) -> None:
    page.goto(f"{address}#run=live&tab=time")
    expect(page.locator('.lane canvas[aria-label*="collect"]').first).to_be_visible()
    expect(page.locator('.lane canvas[aria-label*="learn"]').first).to_be_visible()
    expect(page.get_by_text("cores in use")).to_be_visible()


def test_a_study_shows_its_variants_and_leads_to_its_runs(page: Page, address: str, root: Path) -> None:
    for variant, seed in (("slow", 0), ("slow", 1), ("fast", 0)):
        shutil.copytree(root / "ended", root / "study" / "runs" / variant / f"seed-{seed}")
    (root / "study" / "study.yaml").write_text("seeds: 2\nvariants: {slow: {}, fast: {}}\n")
    (root / "study" / "study.json").write_text(json.dumps({"failed": {"fast/seed-1": f"it broke {HOSTILE}"}}))
    page.goto(address)
    page.locator("#studies").get_by_role("link", name="study").click()
    expect(page.locator(".stat", has_text="runs")).to_contain_text("3 of 4")
    expect(page.locator('[data-series="slow, mean of 2"]')).to_be_attached()
    expect(page.locator("tbody th", has_text="fast")).to_be_visible()
    expect(page.locator(".failure pre")).to_have_text(f"it broke {HOSTILE}")
    page.get_by_role("link", name="seed-1", exact=True).click()
    expect(page.locator("#title")).to_have_text("study/runs/slow/seed-1")
    expect(page.locator('[data-series="mean of the herd"]').first).to_be_attached()


def test_light_and_dark(page: Page, address: str) -> None:
    ink = "rgb(228, 232, 238)", "rgb(29, 39, 51)"

    def expect_dark(dark: bool) -> None:
        """The page's ground, and the lines that were drawn for the other one."""
        wait_until(
            page,
            """dark => { const shade = getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number);
            const sum = shade[0] + shade[1] + shade[2]; return dark ? sum < 150 : sum > 600; }""",
            dark,
        )
        expect(page.locator('[data-series="mean of the herd"]').first).to_have_css("stroke", ink[0 if dark else 1])

    page.emulate_media(color_scheme="light")
    page.goto(f"{address}#run=ended&tab=curves")
    expect_dark(False)
    page.emulate_media(color_scheme="dark")
    expect_dark(True)
    page.locator("#theme").click()
    expect_dark(False)


@pytest.mark.parametrize("tab", list(CONTENT))
def test_a_phone_shows_everything_without_scrolling_sideways(page: Page, address: str, tab: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{address}#run=ended&tab={tab}")
    expect(page.locator(f"#tab-{tab}")).to_have_attribute("aria-selected", "true")
    expect(page.locator(CONTENT[tab]).first).to_be_visible()
    if tab == "herd":
        expect(page.locator("#film-now")).to_have_attribute("aria-label", re.compile("turn"))  # drawn
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_by_keyboard_only(page: Page, address: str) -> None:
    page.goto(address)
    expect(page.get_by_role("link", name="ended")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("ended")
    for _ in range(6):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "ended":
            break
    page.keyboard.press("Enter")
    expect(page.locator("#title")).to_have_text("ended")
    page.locator("#tab-herd").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tab-curves")).to_be_focused()
    expect(page.locator("#tab-curves")).to_have_attribute("aria-selected", "true")
    page.locator(".chart svg").first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".chart .tip").first).to_be_visible()
    page.keyboard.press("Escape")
    page.locator("#tab-curves").focus()
    page.keyboard.press("5")
    expect(page.locator("#tab-plan")).to_have_attribute("aria-selected", "true")


def test_keys_lead_on_from_a_box(page: Page, address: str) -> None:
    page.goto(f"{address}#run=ended&tab=curves")
    page.get_by_label("each agent").focus()
    page.keyboard.press("5")
    expect(page.locator("#tab-plan")).to_have_attribute("aria-selected", "true")
    page.locator("nav input[type=checkbox]:enabled").first.focus()
    page.keyboard.press("/")
    expect(page.locator("#filter")).to_be_focused()
    expect(page.get_by_role("button", name=re.compile("^copy remuda resume .*ended$"))).to_be_visible()


def test_a_curve_of_one_point_is_seen(page: Page, address: str, root: Path) -> None:
    run = root / "short"
    shutil.copytree(root / "ended", run)
    table = run / "metrics.csv"
    lines = table.read_text().splitlines(keepends=True)
    table.write_text("".join(line for line in lines if line.split(",")[0] in ("round", "1")))
    page.goto(f"{address}#run=short&tab=curves")
    line = page.locator('[data-series="mean of the herd"]').first
    expect(line).to_be_attached()
    assert float(line.get_attribute("stroke-width") or 0) > 5
    shutil.rmtree(run)


def test_hostile_names_are_text(page: Page, address: str) -> None:
    page.goto(address)
    page.get_by_role("link", name=HOSTILE).click()
    for tab, content in CONTENT.items():
        page.locator(f"#tab-{tab}").click()
        expect(page.locator(content).first).to_be_visible()
    page.locator("#tab-herd").click()
    expect(page.locator(".scores li", has_text=HOSTILE)).to_have_count(4)
    page.locator("#scrub").focus()
    page.keyboard.press("Home")
    expect(page.locator("figure .mono", has_text=HOSTILE)).to_have_count(2)
    page.locator("#tab-curves").click()
    expect(page.locator(".chart h3", has_text="<script>")).to_be_visible()
    page.locator("#tab-trouble").click()
    expect(page.locator("#panel pre", has_text=HOSTILE)).to_be_visible()
    expect(page.locator("main img, nav img")).to_have_count(0)
    assert page.evaluate("window.hacked") is None


@pytest.fixture
def controlling(root: Path) -> Iterator[str]:
    """The address of a board that may stop and extend runs."""
    server = BoardServer(Board(root, allow_control=True))
    server.start()
    yield server.url
    server.shutdown()
    server.server_close()


def test_stop_and_extend_by_button_only_where_it_is_allowed(
    page: Page, address: str, controlling: str, root: Path, training: subprocess.Popen[bytes]
) -> None:
    page.goto(f"{address}#run=live&tab=plan")
    expect(page.get_by_text("remuda resume").first).to_be_visible()
    expect(page.locator("#stop, #extend")).to_have_count(0)
    page.goto(f"{controlling}#run=live&tab=plan")
    expect(page.locator(".stat", has_text="episodes")).to_contain_text(re.compile("^[1-9]"))  # something to go on from
    page.get_by_role("button", name="save and stop").focus()
    page.keyboard.press("Enter")
    assert training.wait(120) == 128 + signal.SIGTERM
    expect(page.locator(".run.chosen .badge")).to_have_text("stopped")
    expect(page.locator("#extend")).to_be_enabled()
    expect(page.locator("#panel")).to_be_focused()  # the button is disabled now; the keyboard stays where it was
    more = int(remuda.Run(root / "live").metrics["episodes"][-1]) + 40
    page.get_by_label("episodes in all").fill(str(more))
    page.get_by_role("button", name="extend").click()
    expect(page.get_by_role("status").get_by_text(f"live goes on to {more:,} episodes")).to_be_visible()
    expect(page.locator(".run.chosen .badge")).to_have_text("finished")
    expect(page.locator(".stat", has_text="episodes")).to_contain_text(f"{more:,} of {more:,}")


def test_train_with_board_opens_the_page_with_the_run(page: Page, tmp_path: Path) -> None:
    """`$BROWSER` is who is asked to open it."""
    opener = tmp_path / "opener"
    opener.write_text(f'#!/bin/sh\nprintf %s "$1" > {tmp_path}/part && mv {tmp_path}/part {tmp_path}/opened\n')
    opener.chmod(0o755)
    command = [sys.executable, "-m", "remuda", "train", "treasurehunt", *SETTINGS, "--out", "runs/own", "--board"]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path,
        env={**os.environ, "BROWSER": f"{opener} %s"},
    )  # fmt: skip
    try:
        while not (tmp_path / "opened").exists():
            assert process.poll() is None
            time.sleep(0.1)
        opened = (tmp_path / "opened").read_text()
        page.goto(opened)
        expect(page.locator("#title")).to_have_text("own")
        expect(page.locator(".run.chosen .badge")).to_have_text("running")
        port = urlsplit(opened).port
        listening = [own.laddr for own in psutil.net_connections("inet") if own.status == psutil.CONN_LISTEN]
        assert [address for address, own in listening if own == port] == ["127.0.0.1"]
        rows = tmp_path / "runs" / "own" / "metrics.csv"
        # A run that has not begun yet ends at once, without saving.
        proc.wait(lambda: rows.exists() or process.poll() is not None, PATIENCE_MS / 1000)
        assert process.poll() is None
    finally:
        process.terminate()
        assert process.wait(120) == 128 + signal.SIGTERM
    with pytest.raises(OSError, match="refused"):  # the board ends with the training
        socket.create_connection(("127.0.0.1", port or 0))
