"""study.html in a real browser (Chromium), at the widths of a laptop and of a telephone."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, sync_playwright

from remuda.studies.design import Design, StudyOptions
from remuda.studies.page import PAGE, write_page
from remuda.studies.report import StudyReport

LONG = "a variant with a rather long name, as grids of several settings make them"
OUTSIDE = """() => [...document.querySelectorAll('svg')].flatMap((svg, i) => {
    const box = svg.getBoundingClientRect();
    return [...svg.querySelectorAll('g[id^=text]')].filter(own => {
        const text = own.getBoundingClientRect();
        return text.left < box.left - 1 || text.right > box.right + 1
            || text.top < box.top - 1 || text.bottom > box.bottom + 1;
    }).map(own => `${i} ${own.id}`);
})"""
"""Texts of pictures that are cut off: matplotlib draws letters as outlines in groups that are called text_N."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert path is not None, "there is no Chromium: `make browser` installs it"
    with sync_playwright() as playwright:
        own = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield own
        own.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, trained: Any) -> Path:
    """A study of two variants with six seeds each: copies of one run, with other returns."""
    out = tmp_path_factory.mktemp("study")
    run = trained(evaluate_every=3)
    keys = {"settings": {"game": "treasurehunt"}, "variants": {"plain": {}, LONG: {"lr": 0.01}}, "seeds": 6}
    design = Design.of(StudyOptions.read({**keys, "margin": 1.0}, "the study"))
    draw, folders = np.random.default_rng(0), {}
    with (run.path / "evaluations.csv").open() as file:
        rows = [*csv.DictReader(file)]
    for own in design.runs:
        folders[own.name] = out / "runs" / own.name
        shutil.copytree(run.path, folders[own.name])
        with (folders[own.name] / "evaluations.csv").open("w", newline="") as file:
            table = csv.DictWriter(file, rows[0])
            table.writeheader()
            table.writerows({**row, "return": f"{draw.normal():.4f}"} for row in rows)
    report = StudyReport.of(design, folders)
    write_page(report, out, {"plain/seed-9": f"warm_start={'/a/long/path' * 12} is not a run"})
    return out


@pytest.mark.promise
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_cut_off_or_wider_than_the_screen(browser: Browser, folder: Path, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((folder / PAGE).as_uri())
    assert page.locator("svg").count() == 6
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(OUTSIDE) == []
    assert len(asked) == 1, "the page is not in one file"
    if width == 390:  # names stay in sight while numbers are scrolled
        left = "[...document.querySelectorAll('.wide')].map(own => (own.scrollLeft = 200, \
            own.querySelector('td').getBoundingClientRect().left - own.getBoundingClientRect().left))"
        assert page.evaluate(left) == pytest.approx([0] * page.locator(".wide").count(), abs=1)


def test_pictures_are_there_as_svg_pdf_and_png(folder: Path) -> None:
    for path in sorted((folder / "figures").iterdir()):
        assert path.read_bytes().startswith({".svg": b"<?xml", ".pdf": b"%PDF-", ".png": b"\x89PNG"}[path.suffix])
    assert len([*(folder / "figures").iterdir()]) == 18
