"""Chromium, and waiting for what it shows."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Page

PATIENCE_MS = 180_000
HOSTILE = '<img src=x onerror="window.hacked=1">'
COUNT_PICTURES = """
    window.pictures = []; // when the pictures of films were drawn; what one step of the page's program draws is one
    let drawing = false;
    const fill = CanvasRenderingContext2D.prototype.fillRect;
    CanvasRenderingContext2D.prototype.fillRect = function (...box) {
        if (this.canvas.id.startsWith("film-") && !drawing) {
            pictures.push(performance.now());
            drawing = true;
            queueMicrotask(() => { drawing = false; });
        }
        return fill.apply(this, box);
    };
"""


def chromium() -> str:
    """The browser of this machine; a machine without one fails these tests, and does not skip them."""
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        if found := shutil.which(name):
            return found
    raise AssertionError("there is no Chromium: `make browser` installs it")


def wait_until(page: Page, predicate: str, argument: Any = None) -> None:
    """Waits for a function of the page to be true.

    Playwright's `wait_for_function` repeats its test inside the page by `eval`, which the board's policy forbids.
    """
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while not page.evaluate(predicate, argument):
        assert time.monotonic() < deadline, predicate
        page.wait_for_timeout(50)


def mean_line(page: Page) -> str:
    return page.locator('[data-series="mean of the herd"]').first.get_attribute("d") or ""
