"""The page in a browser: nothing complains, nothing is fetched, nothing is cut off."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from results.page import render_page
from tests.results.browser import Page, browser, find_chromium
from tests.results.made_up import full_report

EMPTY_PICTURES = """[...document.querySelectorAll('svg')].filter(svg => {
  const box = svg.getBBox(), drawn = svg.querySelectorAll('path.line');
  return !(box.width > 0 && drawn.length && [...drawn].every(line => line.getTotalLength() > 0));
}).length"""
UNREADABLE_LEGENDS = """[...document.querySelectorAll('figure.chart')].filter(figure =>
  figure.querySelectorAll(':scope > svg path.line').length !== figure.querySelectorAll('li').length
).length"""
SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
LINE = "getComputedStyle(document.querySelector('path.line')).stroke"
BROKEN_LINKS = """[...document.querySelectorAll('a[href^="#"]')].filter(
  a => !document.querySelector(a.getAttribute('href'))).length"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory):
    if not find_chromium():
        pytest.skip("no Chromium on this machine")
    with browser(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    path = folder / "report.html"
    path.write_text(render_page(full_report(folder)))
    return path


@pytest.mark.parametrize("width", [1200, 375])
def test_nothing_complains_and_all_is_drawn(page: Page, file: Path, width: int):
    page.open(file, width)
    assert page.run("document.querySelectorAll('figure.chart').length") > 10
    assert page.run(EMPTY_PICTURES) == 0
    assert page.run(UNREADABLE_LEGENDS) == 0
    assert page.run(BROKEN_LINKS) == 0
    assert page.run(SIDEWAYS) <= 0
    assert page.run("document.querySelectorAll('circle title').length") > 100
    assert not page.complaints
    assert set(page.requests) == {file.as_uri()}


def test_light_and_dark_follow_the_reader(page: Page, file: Path):
    seen = []
    for dark in (False, True):
        page.open(file, 1200, dark=dark)
        seen.append((page.run(BACKGROUND), page.run(LINE)))
    assert seen[0][0] != seen[1][0]
    assert seen[0][1] != seen[1][1]


def test_open_folds_do_not_widen_a_phone(page: Page, file: Path):
    page.open(file, 375)
    page.run("document.querySelectorAll('details').forEach(fold => fold.open = true)")
    assert page.run(SIDEWAYS) <= 0


def test_the_page_needs_no_browser_to_be_found_self_contained(file: Path):
    text = file.read_text()
    assert "<script" not in text
    for fetching in ("src=", "@import", "url(", 'rel="stylesheet"'):
        assert fetching not in text


def test_browsers_are_looked_for_on_the_path(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert find_chromium() is None
