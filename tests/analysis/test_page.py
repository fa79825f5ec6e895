"""The page in a browser: no errors, no requests, nothing cut off."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from analysis.pages import render_page
from tests.analysis.browser import Page, browser, find_chromium
from tests.analysis.fakes import full_report

EMPTY_PICTURES = """[...document.querySelectorAll('svg')].filter(svg => {
  const box = svg.getBBox(), drawn = svg.querySelectorAll('path');
  return !(box.width > 0 && drawn.length && [...drawn].every(line => line.getTotalLength() > 0));
}).length"""
CUT_TEXTS = """[...document.querySelectorAll('svg text')].filter(text => {
  const own = text.getBoundingClientRect(), all = text.ownerSVGElement.getBoundingClientRect();
  return own.left < all.left - 1 || own.right > all.right + 1;
}).length"""
LEGENDS_WITHOUT_COLOUR = """[...document.querySelectorAll('figure.chart')].filter(figure =>
  [...figure.querySelectorAll('.key')].some(key => !figure.querySelector('svg').innerHTML.includes(
    key.getAttribute('style').replace('color: ', '')))).length"""
SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
LINE = "getComputedStyle(document.querySelector('svg circle')).fill"
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
    path.write_text(render_page(full_report(folder), folder))
    return path


@pytest.mark.parametrize("width", [1200, 375])
def test_no_errors_and_every_chart_is_drawn(page: Page, file: Path, width: int):
    page.open(file, width)
    assert page.run("document.querySelectorAll('figure.chart').length") > 10
    assert page.run(EMPTY_PICTURES) == 0
    assert page.run(CUT_TEXTS) == 0
    assert page.run(LEGENDS_WITHOUT_COLOUR) == 0
    assert page.run(BROKEN_LINKS) == 0
    assert page.run(SIDEWAYS) <= 0
    assert page.run("document.querySelectorAll('circle title').length") > 100
    assert not page.errors
    assert set(page.requests) == {file.as_uri()}


def test_colours_follow_light_and_dark_mode(page: Page, file: Path):
    seen = []
    for dark in (False, True):
        page.open(file, 1200, dark=dark)
        seen.append((page.run(BACKGROUND), page.run(LINE)))
    assert seen[0][0] != seen[1][0]
    assert seen[0][1] != seen[1][1]


def test_open_details_do_not_widen_a_narrow_page(page: Page, file: Path):
    page.open(file, 375)
    page.run("document.querySelectorAll('details').forEach(fold => fold.open = true)")
    assert page.run(SIDEWAYS) <= 0


def test_the_page_is_self_contained(file: Path):
    text = file.read_text()
    assert "<script" not in text
    for fetching in ("src=", "@import", "url(", 'rel="stylesheet"'):
        assert fetching not in text


def test_without_a_browser_none_is_found(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert find_chromium() is None
