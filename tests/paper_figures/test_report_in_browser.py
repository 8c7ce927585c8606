"""The report in a real browser: it sorts, filters, fits the screen, and fetches nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from matplotlib.colors import to_rgb

from tests.paper_figures.browser import NAMES, Browser, executable, headless
from tst_study.paper_figures.build import Built

pytestmark = pytest.mark.skipif(
    executable() is None, reason=f"no browser on the PATH ({', '.join(NAMES)})"
)

RUNS = "#runs-1"
SIZES = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]


@pytest.fixture(scope="module")
def report(built: Built) -> Path:
    assert built.report is not None
    return built.report


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with headless(tmp_path_factory.mktemp("profile")) as found:
        yield found


def column(browser: Browser, place: int, table: str = RUNS) -> list[str]:
    """Values of a column as they stand, rows that are hidden left out."""
    found: list[str] = browser.run(
        f"[...document.querySelector('{table}').tBodies[0].rows].filter(row => !row.hidden)"
        f".map(row => row.cells[{place}].dataset.value ?? row.cells[{place}].textContent)"
    )
    return found


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_it_fits_the_screen(browser: Browser, report: Path, width: int, scheme: str) -> None:
    browser.open(report, width, scheme)
    assert browser.run("document.documentElement.scrollWidth") == width
    assert browser.run("[...document.querySelectorAll('figure svg')].length") >= 6
    narrow = browser.run(
        "[...document.querySelectorAll('figure svg')].map(svg => svg.getBoundingClientRect().width)"
    )
    assert min(narrow) > 300


def test_light_and_dark_differ_and_both_can_be_read(browser: Browser, report: Path) -> None:
    """Text stands out from the page by at least 4.5 to 1, every curve by 1.7."""
    for scheme in ("light", "dark"):
        browser.open(report, 1280, scheme)
        found = browser.run(
            "(() => { const style = getComputedStyle(document.documentElement);"
            "const drawn = [...document.querySelectorAll('figure svg')].flatMap("
            "svg => svg.outerHTML.match(/--c-[0-9a-f]{6}/g));"
            "return Object.fromEntries(['--page', '--ink', '--muted', '--link', ...drawn]"
            ".map(name => [name, style.getPropertyValue(name).trim()])); })()"
        )
        light = {name: luminance(colour) for name, colour in found.items()}
        page = light.pop("--page")
        assert page > 0.9 if scheme == "light" else page < 0.05
        for name in light.keys() - {"--c-ffffff", "--c-d4d4da"}:
            ratio = (max(page, light[name]) + 0.05) / (min(page, light[name]) + 0.05)
            assert ratio >= (1.7 if name.startswith("--c") else 4.5), (scheme, name)


def luminance(colour: str) -> float:
    """As sRGB defines it."""
    parts = [((v + 0.055) / 1.055) ** 2.4 if v > 0.04045 else v / 12.92 for v in to_rgb(colour)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def test_a_click_sorts_a_second_turns_the_order_and_empty_cells_stay_last(
    browser: Browser, report: Path
) -> None:
    browser.open(report, 1280)
    headings = browser.run(
        f"[...document.querySelectorAll('{RUNS} th')].map(head => head.textContent)"
    )
    place = headings.index("held-out loss")
    cell = f"document.querySelector('{RUNS}').tBodies[0].rows[3].cells[{place}]"
    browser.run(f"{cell}.dataset.value = ''")
    for order in ("ascending", "descending"):
        browser.click(f"{RUNS} th:nth-child({place + 1}) button")
        *values, last = column(browser, place)
        assert last == ""
        known = [float(value) for value in values]
        assert known == sorted(known, reverse=order == "descending")
        head = f"document.querySelectorAll('{RUNS} th')[{place}]"
        assert browser.run(f"{head}.ariaSort") == order
        mark = f"getComputedStyle({head}.querySelector('button'), '::after').content"
        assert ("↑" if order == "ascending" else "↓") in browser.run(mark)


def test_one_setting_is_found_by_its_name_and_nothing_is_said_to_be_nothing(
    browser: Browser, report: Path
) -> None:
    browser.open(report, 1280)
    field = f'input[data-filters="{RUNS[1:]}"]'
    said = f"document.querySelector('{field}').nextElementSibling.textContent"
    browser.type(field, "s = 16")
    assert browser.run(said) == "3 of 23 rows"
    assert all("s16" in name for name in column(browser, 0))
    browser.type(field, " seed1")
    assert browser.run(said) == "1 of 23 rows"
    browser.type(field, "7")
    assert column(browser, 0) == []
    assert browser.run(said) == "No row has this."
    browser.open(report, 1280)
    browser.type(field, "s = 1")
    assert column(browser, 0) == []


def test_the_page_answers_before_it_lists(browser: Browser, report: Path) -> None:
    """Question, answer and a picture of it on the first screen, whose both halves are filled."""
    browser.open(report, 1280)
    places = "part => [part.textContent, ...['left', 'bottom'].map("
    places += "side => part.getBoundingClientRect()[side])]"
    selected = "header .question, header .answer, header figure svg"
    top = browser.run(f"[...document.querySelectorAll('{selected}')].map({places})")
    (asked, *_), (answer, *_), (_, left, bottom) = top
    assert asked.startswith("Does training that first reads bags")
    assert re.match(r"\d+ settings against the baseline at equal FLOPs: ", answer)
    assert left > 600
    assert bottom < 900
    assert "reads bags of s tokens for a share r" in browser.run(
        "document.querySelector('header').textContent"
    )


def test_what_scrolls_has_a_name_and_is_reached_and_moved_by_keyboard(
    browser: Browser, report: Path
) -> None:
    browser.open(report, 390)
    boxes = browser.run(
        "[...document.querySelectorAll('.scroll')].map(box => "
        "[box.tabIndex, box.getAttribute('role'), box.getAttribute('aria-label')])"
    )
    assert len(boxes) >= 8
    assert all(place == 0 and role == "region" and name for place, role, name in boxes)
    browser.press("Tab")
    browser.run(f"document.querySelector('{RUNS}').closest('.scroll').focus()")
    browser.press("ArrowRight")
    for _ in range(5000):  # it scrolls smoothly
        if browser.run("document.activeElement.scrollLeft") > 0:
            break
    assert browser.run("document.activeElement.scrollLeft") > 0
    assert browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_a_wide_figure_scrolls_on_a_telephone_and_says_so(browser: Browser, report: Path) -> None:
    hints = "[...document.querySelectorAll('figure.wide .hint')]"
    browser.open(report, 1280)
    assert browser.run(f"{hints}.every(hint => hint.offsetHeight === 0)")
    browser.open(report, 390)
    assert browser.run(f"{hints}.length") >= 3
    assert browser.run(f"{hints}.every(hint => hint.offsetHeight > 0)")
    boxes = "[...document.querySelectorAll('figure.wide .scroll')]"
    assert browser.run(f"{boxes}.every(box => box.scrollWidth > box.clientWidth)")


def test_a_mark_under_the_pointer_says_its_value(browser: Browser, report: Path) -> None:
    browser.open(report, 1280)
    mark = "document.querySelector('figure#effects .said')"
    browser.run(f"{mark}.scrollIntoView({{block: 'center'}})")
    found = browser.run(
        f"(() => {{ const box = {mark}.getBoundingClientRect();"
        "const at = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);"
        "return at.closest('.said').querySelector('title').textContent; })()"
    )
    assert found.startswith("s = ")
    assert "nats, no difference shown" in found


def test_each_figure_links_to_its_numbers(browser: Browser, report: Path) -> None:
    browser.open(report, 1280)
    links = browser.run("[...document.querySelectorAll('figcaption a')].map(link => link.href)")
    assert len(links) == browser.run("document.querySelectorAll('figure').length")
    assert {Path(link).suffix for link in links} == {".csv"}
    assert all(Path(link.removeprefix("file://")).is_file() for link in links)


def test_it_asks_for_nothing_and_complains_of_nothing(browser: Browser, report: Path) -> None:
    browser.open(report, 390)
    inside = ("data:",)  # pictures within pictures
    asked = {url for url in browser.requests if not url.startswith(inside)}
    assert asked == {report.as_uri()}
    assert browser.problems == []
