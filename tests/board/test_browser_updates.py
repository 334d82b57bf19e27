"""How little an open page does: what it draws anew, and that it rests while nobody sees it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import mean_line
from playwright.sync_api import Page, expect


@pytest.fixture
def growing(root: Path) -> Iterator[Path]:
    """The table of a run with many rows, to which a test adds."""
    run = root / "growing"
    shutil.copytree(root / "ended", run)
    head = "round,episodes,agent_steps,wall_s,group,agent,player,return\n"
    (run / "metrics.csv").write_text(head + "".join(row_of(number) for number in range(1, 990)))
    yield run / "metrics.csv"
    shutil.rmtree(run)


def row_of(number: int) -> str:
    return f"{number},{number},{number},{number},all,0,iqn,{number % 7}\n"


def test_a_new_row_changes_the_end_of_a_line_and_nothing_else(page: Page, address: str, growing: Path) -> None:
    page.goto(f"{address}#run=growing&tab=curves")
    tail = page.locator('[data-tail="mean of the herd"]').first
    expect(tail).to_be_attached()
    expect(page.locator(".run.chosen .facts")).to_be_visible()
    page.evaluate(
        "for (const own of document.querySelectorAll('.chart svg *, .stat *, .run *')) own.setAttribute('data-old', '')"
    )
    before, whole = tail.get_attribute("d") or "", mean_line(page)
    with growing.open("a") as file:
        file.write(row_of(990))
    expect(tail).not_to_have_attribute("d", before)
    assert mean_line(page) == whole
    assert page.locator(".chart svg *, .stat *, .run *").count() == page.locator("[data-old]").count()
    expect(page.locator(".stat", has_text="episodes").locator("b")).to_contain_text("990")


def test_a_hidden_page_asks_for_nothing_until_it_is_seen(page: Page, address: str, growing: Path) -> None:
    page.goto(f"{address}#run=growing&tab=curves")
    tail = page.locator('[data-tail="mean of the herd"]').first
    expect(tail).to_be_attached()
    hide = """hidden => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });
        document.dispatchEvent(new Event('visibilitychange')); }"""
    page.wait_for_timeout(1000)  # charts have come into sight, and the page has asked for them
    with page.expect_event("requestfailed", lambda request: "/api/follow" in request.url):
        page.evaluate(hide, True)
    before = tail.get_attribute("d") or ""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    with growing.open("a") as file:
        file.write(row_of(990))
    page.wait_for_timeout(3000)
    assert asked == []
    assert tail.get_attribute("d") == before
    page.evaluate(hide, False)
    expect(tail).not_to_have_attribute("d", before)


def test_a_film_rests_when_nobody_touches_the_page(page: Page, address: str) -> None:
    page.clock.install()
    page.goto(f"{address}#run=ended&tab=herd")
    turn = page.locator("#turn")
    expect(turn).to_contain_text("of 12")
    page.clock.fast_forward(121_000)
    expect(turn).to_have_text("rests until the page is touched")
    page.mouse.move(300, 300)
    expect(turn).to_contain_text("of 12")
