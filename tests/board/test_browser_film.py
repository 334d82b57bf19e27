"""What a film draws: what has changed, in the right place, and nothing while nobody sees it."""

from __future__ import annotations

import re
from itertools import pairwise

from browsing import COUNT_PICTURES, wait_until
from playwright.sync_api import Page, expect

BOTH = "() => ['before', 'now'].map(name => document.getElementById(`film-${name}`).toDataURL()).join()"


def open_film(page: Page, address: str) -> None:
    page.goto(f"{address}#run=ended&tab=herd")
    expect(page.locator("#turn")).to_contain_text("of 12")
    page.get_by_role("button", name="pause").click()
    page.locator("#scrub").focus()
    page.keyboard.press("Home")
    expect(page.locator("#turn")).to_have_text("turn 0 of 12")


def test_a_picture_made_of_changes_is_the_same_as_a_whole_one(page: Page, address: str) -> None:
    open_film(page, address)
    seen = set()
    for turn in range(1, 13):
        page.keyboard.press("ArrowRight")
        expect(page.locator("#turn")).to_have_text(f"turn {turn} of 12")
        by_changes = page.evaluate(BOTH)
        page.evaluate("document.getElementById('theme').click()")  # draws it anew
        assert page.evaluate(BOTH) == by_changes, f"turn {turn}"
        seen.add(by_changes)
    assert len(seen) > 6, "the film stands still"
    page.keyboard.press("Home")
    page.keyboard.press("End")
    expect(page.locator("#turn")).to_have_text("turn 12 of 12")
    assert page.evaluate(BOTH) == by_changes


def test_a_film_out_of_sight_is_not_drawn(page: Page, address: str) -> None:
    page.add_init_script(COUNT_PICTURES)
    page.set_viewport_size({"width": 390, "height": 500})
    page.goto(f"{address}#run=ended&tab=herd")
    page.locator("#film-before").scroll_into_view_if_needed()
    wait_until(page, "() => pictures.length > 5")
    page.evaluate("scrollTo(0, 0)")
    wait_until(page, "() => performance.now() - pictures.at(-1) > 5000")  # a film that plays rests for two at its end
    before = page.evaluate("pictures.length")
    page.locator("#film-now").scroll_into_view_if_needed()
    wait_until(page, "before => pictures.length > before", before)


def test_a_window_that_is_made_lower_shows_the_whole_field(page: Page, address: str) -> None:
    open_film(page, address)
    high = "() => document.getElementById('film-now').getBoundingClientRect().height"
    before = page.evaluate(high)
    page.set_viewport_size({"width": 1280, "height": 500})
    wait_until(page, f"before => ({high})() < before", before)


def test_words_follow_a_film_that_plays_and_are_exact_when_it_stands(page: Page, address: str) -> None:
    page.goto(f"{address}#run=ended&tab=herd")
    turn = page.locator("#turn")
    expect(turn).to_contain_text("of 12")
    page.evaluate("""() => { window.written = [];
        const watch = new MutationObserver(() => written.push(performance.now()));
        watch.observe(document.getElementById('turn'), { childList: true }); }""")
    wait_until(page, "() => written.length >= 7")
    written = page.evaluate("written")
    soon = [after - before < 900 for before, after in pairwise(written[:7])]
    assert sum(soon) <= 3  # a film's end is written at once; else once a second of four turns
    page.get_by_role("button", name="pause").click()
    shown = turn.inner_text().split()[1]
    assert page.locator("#scrub").input_value() == shown
    expect(page.locator("#film-now")).to_have_attribute("aria-label", re.compile(f"now, turn {shown}, return"))
