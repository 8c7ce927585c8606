"""The report in a real browser: it sorts, filters, fits the screen, and fetches nothing."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from paper_figures.build import Built
from tests.paper_figures.browser import NAMES, Browser, executable, headless

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
def test_it_fits_the_screen(
    browser: Browser, report: Path, tmp_path: Path, width: int, scheme: str
) -> None:
    browser.open(report, width, scheme)
    assert browser.run("document.documentElement.scrollWidth") == width
    assert browser.run("[...document.querySelectorAll('figure svg')].length") >= 6
    narrow = browser.run(
        "[...document.querySelectorAll('figure:not(.twice) svg')]"
        ".map(svg => svg.getBoundingClientRect().width)"
    )
    assert min(narrow) > 300
    picture = browser.screenshot(tmp_path / "report.png")
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", picture[16:24]) == (width, 900)


def test_light_and_dark_differ_and_both_can_be_read(browser: Browser, report: Path) -> None:
    """Text, muted text and every curve stand out from the page by at least 2 to 1, text by 4.5."""
    script = """(() => {
      const style = getComputedStyle(document.documentElement);
      const light = (name) => {
        const hex = style.getPropertyValue(name).trim().slice(1);
        const parts = [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255);
        const [r, g, b] = parts.map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const page = light("--page");
      const ratio = (name) => {
        const other = light(name);
        return (Math.max(page, other) + 0.05) / (Math.min(page, other) + 0.05);
      };
      const names = (selected) => [...new Set([...document.querySelectorAll(selected)]
        .flatMap((node) => node.outerHTML.match(/--c-[0-9a-f]{6}/g) ?? []))];
      const drawn = names("figure svg").filter((n) => !["--c-ffffff", "--c-d4d4da"].includes(n));
      return {page, text: Math.min(ratio("--ink"), ratio("--muted"), ratio("--link")),
              curves: Math.min(...drawn.map(ratio)), many: drawn.length};
    })()"""
    found = {}
    for scheme in ("light", "dark"):
        browser.open(report, 1280, scheme)
        found[scheme] = browser.run(script)
        assert found[scheme]["text"] >= 4.5
        assert found[scheme]["curves"] >= 1.7
        assert found[scheme]["many"] >= 5
    assert found["light"]["page"] > 0.9
    assert found["dark"]["page"] < 0.05


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
    """Question, answer and sureness for each text, on the first screen."""
    browser.open(report, 1280)
    top = browser.run(
        "[...document.querySelectorAll('header .lead')].map(part => "
        "[part.textContent, part.getBoundingClientRect().bottom])"
    )
    words = [text for text, _ in top]
    assert words[0].startswith("Asked: ")
    assert words[1].startswith("books-bpe1024 (232k parameters")
    assert "no difference shown" in words[1]
    assert "95% interval" in words[1]
    assert words[2].startswith("generated language (")
    assert "4 settings: " in words[2]
    assert max(bottom for _, bottom in top) < 900
    assert "s: tokens per bag; r:" in browser.run("document.querySelector('header').textContent")


def test_words_in_tables_wrap(browser: Browser, report: Path) -> None:
    """A long cell takes several lines instead of widening its table."""
    browser.open(report, 1280)
    lines, width = browser.run(
        f"(() => {{ const cell = document.querySelector('{RUNS} td:last-child');"
        "cell.textContent = 'a few words '.repeat(20);"
        "return [cell.offsetHeight / parseFloat(getComputedStyle(cell).lineHeight),"
        "cell.offsetWidth / parseFloat(getComputedStyle(document.documentElement).fontSize)]; })()"
    )
    assert lines > 2
    assert width < 28


def test_what_scrolls_has_a_name_and_is_reached_and_moved_by_keyboard(
    browser: Browser, report: Path
) -> None:
    browser.open(report, 390)
    boxes = browser.run(
        "[...document.querySelectorAll('.scroll')].map(box => "
        "[box.tabIndex, box.getAttribute('role'), box.getAttribute('aria-label')])"
    )
    assert len(boxes) > 10
    assert all(place == 0 and role == "region" and name for place, role, name in boxes)
    browser.press("Tab")
    browser.run(f"document.querySelector('{RUNS}').closest('.scroll').focus()")
    browser.press("ArrowRight")
    for _ in range(5000):  # it scrolls smoothly
        if browser.run("document.activeElement.scrollLeft") > 0:
            break
    assert browser.run("document.activeElement.scrollLeft") > 0
    assert browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_a_heading_shows_that_it_sorts_and_sorts_by_keyboard(
    browser: Browser, report: Path
) -> None:
    browser.open(report, 1280)
    button = f"document.querySelector('{RUNS} th:nth-child(2) button')"
    mark = f"getComputedStyle({button}, '::after').content"
    assert "↕" in browser.run(mark)
    browser.run(f"{button}.focus()")
    browser.press("Enter")
    assert "↑" in browser.run(mark)
    values = [float(value) for value in column(browser, 1)]
    assert values == sorted(values)


def test_a_wide_figure_scrolls_on_a_telephone_and_says_so(browser: Browser, report: Path) -> None:
    hints = "[...document.querySelectorAll('figure.wide:not(.twice) .hint')]"
    browser.open(report, 1280)
    assert browser.run(f"{hints}.every(hint => hint.offsetHeight === 0)")
    browser.open(report, 390)
    assert browser.run(f"{hints}.length") >= 3
    assert browser.run(f"{hints}.every(hint => hint.offsetHeight > 0)")
    boxes = "[...document.querySelectorAll('figure.wide:not(.twice) .scroll')]"
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


def test_each_figure_links_to_its_numbers_and_its_print(browser: Browser, report: Path) -> None:
    browser.open(report, 1280)
    links = browser.run("[...document.querySelectorAll('figcaption a')].map(link => link.href)")
    assert len(links) == 2 * browser.run("document.querySelectorAll('figure').length")
    assert {Path(link).suffix for link in links} == {".csv", ".pdf"}
    assert all(Path(link.removeprefix("file://")).is_file() for link in links)


def test_links_lead_to_run_folders(browser: Browser, report: Path) -> None:
    browser.open(report, 1280)
    links = browser.run(f"[...document.querySelectorAll('{RUNS} a')].map(link => link.href)")
    assert len(links) == 23
    assert all(Path(link.removeprefix("file://"), "run.json").is_file() for link in links)


def test_it_asks_for_nothing_and_complains_of_nothing(browser: Browser, report: Path) -> None:
    browser.open(report, 390)
    inside = ("data:",)  # pictures within pictures
    asked = {url for url in browser.requests if not url.startswith(inside)}
    assert asked == {report.as_uri()}
    assert browser.problems == []
