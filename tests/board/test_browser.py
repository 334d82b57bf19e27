"""The board in a real browser (Chromium), while a training runs that the test starts. `make browser` installs it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from remuda.board.server import Board, BoardServer

PATIENCE_MS = 180_000
HOSTILE = '<img src=x onerror="window.hacked=1">'
SETTINGS = (
    "agents=2", "height=9", "width=9", "turns=20", "spawn=0.1", "layer=16", "quantiles=4", "acting_quantiles=4",
    "batch_size=8", "replay_size=512", "worlds=4", "total_episodes=1000000", "evaluate_every=40",
    "evaluate_episodes=4", "engine=vectorized", "device=cpu", "timeline=true",
)  # fmt: skip


def chromium() -> str:
    """The browser of this machine; a machine without one fails these tests, and does not skip them."""
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        if found := shutil.which(name):
            return found
    raise AssertionError("there is no Chromium: `make browser` installs it")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        own = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        yield own
        own.close()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, trained: Any) -> Path:
    """A folder with a run that has ended and one with hostile names."""
    folder = tmp_path_factory.mktemp("board")
    shutil.copytree(trained(pictures=True).path, folder / "ended")
    hostile = folder / HOSTILE
    shutil.copytree(folder / "ended", hostile)
    for name in ("metrics.csv", "evaluations.csv"):
        text = (hostile / name).read_text()
        (hostile / name).write_text(text.replace("gems", "<script>window.hacked=1</script>", 1))
    film = next(iter((hostile / "films").iterdir()))
    content = json.loads(film.read_text())
    content["agents"] = [HOSTILE] * 2
    content["colours"] = ['red"><script>window.hacked=1</script>'] * 2
    film.write_text(json.dumps(content))
    (hostile / "console.log").write_text(f"2026-01-01 00:00:00 failed {HOSTILE}\n")
    (hostile / "config.yaml").write_text(f"game: '{HOSTILE}'\ntotal_episodes: 12\n")
    return folder


@pytest.fixture(scope="module")
def training(root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A training under way, of which the board knows nothing but its folder."""
    command = [sys.executable, "-m", "remuda", "train", "treasurehunt", *SETTINGS, "--out", str(root / "live")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=root)
    yield process
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    process.wait(120)


@pytest.fixture(scope="module")
def address(root: Path) -> Iterator[str]:
    server = BoardServer(Board(root))
    server.start()
    yield server.url
    server.shutdown()
    server.server_close()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """A page on which nothing may go wrong."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if "Security Policy" in message.text else None)
    yield page
    folder = os.environ.get("REMUDA_SCREENSHOTS")
    if folder:
        page.screenshot(path=f"{folder}/{os.environ['PYTEST_CURRENT_TEST'].split('::')[1].split(' ')[0]}.png")
    page.close()
    assert errors == []


def mean_line(page: Page) -> str:
    return page.locator('[data-series="mean of the herd"]').first.get_attribute("d") or ""


def test_a_run_appears_and_its_curves_grow(page: Page, address: str, training: Any) -> None:
    page.goto(address)
    page.get_by_role("link", name="live").click()
    page.get_by_role("tab", name="Curves").click()
    expect(page.locator(".run.chosen .badge")).to_have_text("running")
    expect(page.locator('[data-series="mean of the herd"]').first).to_be_attached()
    before = mean_line(page)
    page.wait_for_function(
        "before => document.querySelector('[data-series=\"mean of the herd\"]').getAttribute('d').length > before",
        arg=len(before) + 20,
    )
    names = [
        own.get_attribute("data-series") for own in page.locator(".chart").first.locator("path[data-series]").all()
    ]
    assert names[:2] == ["agent 0", "agent 1"]
    titles = page.locator(".chart h3 span:first-child").all_inner_texts()
    assert {"return", "gems", "food", "bones", "bumps", "loss"} <= set(titles)


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
    assert "turn 1" in (page.locator("#film-now").get_attribute("aria-label") or "")
    assert page.locator("#version-before").input_value() == "0"
    assert int(page.locator("#version-now").input_value()) >= 0


def test_two_runs_lie_over_each_other(page: Page, address: str, training: Any) -> None:
    page.goto(f"{address}#run=live&tab=curves")
    page.get_by_label("put ended into the curves").check()
    expect(page.locator(".chart").first.locator('[data-series="ended"]')).to_be_attached()
    expect(page.locator(".chart").first.locator('[data-series="live"]')).to_be_attached()
    page.get_by_role("tab", name="Plan").click()
    page.get_by_label("only what differs").check()
    expect(page.locator("tbody tr.differs th", has_text="total_episodes")).to_be_visible()
    assert page.locator("tbody th", has_text="options.agents").count() == 0


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
    expect(page.locator('.lane svg[aria-label*="collect"]').first).to_be_visible()
    expect(page.locator('.lane svg[aria-label*="learn"]').first).to_be_visible()
    expect(page.get_by_text("cores in use")).to_be_visible()


def test_light_and_dark(page: Page, address: str) -> None:
    def brightness() -> int:
        shade = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        return int(sum(shade))

    page.emulate_media(color_scheme="light")
    page.goto(f"{address}#run=ended&tab=curves")
    expect(page.locator('[data-series="mean of the herd"]').first).to_be_attached()
    assert brightness() > 600
    page.emulate_media(color_scheme="dark")
    assert brightness() < 150
    page.locator("#theme").click()
    assert brightness() > 600


@pytest.mark.parametrize("tab", ["herd", "curves", "time", "trouble", "plan"])
def test_a_phone_shows_everything_without_scrolling_sideways(page: Page, address: str, tab: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{address}#run=ended&tab={tab}")
    expect(page.locator(f"#tab-{tab}")).to_have_attribute("aria-selected", "true")
    expect(page.locator("#panel > *").first).to_be_attached()
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


def test_hostile_names_are_text(page: Page, address: str) -> None:
    page.goto(address)
    page.get_by_role("link", name=HOSTILE).click()
    for tab in ("herd", "curves", "time", "trouble", "plan"):
        page.locator(f"#tab-{tab}").click()
        expect(page.locator("#panel > *").first).to_be_attached()
    page.locator("#tab-curves").click()
    expect(page.locator(".chart h3", has_text="<script>")).to_be_visible()
    page.locator("#tab-trouble").click()
    expect(page.locator("#panel pre", has_text=HOSTILE)).to_be_visible()
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, nav img").count() == 0


def test_stop_by_button_only_where_it_is_allowed(
    browser: Browser, page: Page, address: str, root: Path, training: subprocess.Popen[bytes]
) -> None:
    page.goto(f"{address}#run=live&tab=plan")
    expect(page.get_by_text("remuda resume").first).to_be_visible()
    assert page.locator("#stop").count() == 0
    server = BoardServer(Board(root, allow_control=True))
    server.start()
    page.goto(f"{server.url}#run=live&tab=plan")
    page.get_by_role("button", name="save and stop").click()
    assert training.wait(120) == 128 + signal.SIGINT
    expect(page.locator(".run.chosen .badge")).to_have_text("stopped")
    server.shutdown()
    server.server_close()
