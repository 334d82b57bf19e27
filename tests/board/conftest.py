"""Boards of folders with runs, asked by a client and shown in Chromium."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from board_client import Client
from browsing import HOSTILE, PATIENCE_MS, chromium

from remuda.board.server import Board, BoardServer

if TYPE_CHECKING:  # tests of the server need no browser
    from playwright.sync_api import Browser, Page


@pytest.fixture
def folder(tmp_path: Path, trained: Any) -> Path:
    """A folder with a run, beside a file that nobody may read."""
    root = tmp_path / "root"
    root.mkdir()
    shutil.copytree(trained(pictures=True).path, root / "run")
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "secret.csv").write_text("round,episodes,agent,return\n1,1,0,4242\n")
    return root


@pytest.fixture
def board(folder: Path) -> Iterator[Client]:
    server = BoardServer(Board(folder))
    server.start()
    yield Client(server)
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

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
    for film in (hostile / "films").iterdir():
        content = json.loads(film.read_text())
        content["agents"] = [HOSTILE] * 2
        content["colours"] = ['red"><script>window.hacked=1</script>'] * 2
        content["turns"][0]["lines"] = [HOSTILE]
        film.write_text(json.dumps(content))
    (hostile / "console.log").write_text(f"2026-01-01 00:00:00 failed {HOSTILE}\n")
    (hostile / "config.yaml").write_text(f"game: '{HOSTILE}'\ntotal_episodes: 12\n")
    return folder


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
    from playwright.sync_api import expect

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
