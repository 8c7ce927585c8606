"""The report in a real browser: it sorts, filters, fits the screen, and fetches nothing."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_rgb

from tst_study.paper_figures.build import Built

NAMES = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), "")
FLAGS = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run "
FLAGS += "--disable-background-networking --hide-scrollbars --virtual-time-budget=20000 --dump-dom"
SCHEMES = {"light": 1, "dark": 0}

pytestmark = pytest.mark.skipif(not CHROMIUM, reason=f"no browser on the PATH ({NAMES})")

PRELUDE = """
const all = (selector) => [...document.querySelectorAll(selector)];
const table = document.querySelector('#runs-1');
const heads = [...table.querySelectorAll('th')];
const column = (place) => [...table.tBodies[0].rows].filter((row) => !row.hidden)
  .map((row) => row.cells[place].dataset.value ?? row.cells[place].textContent);
"""


@pytest.fixture(scope="module")
def report(built: Built) -> Path:
    return built.report


def ask(report: Path, script: str, width: int = 1280, scheme: str = "light") -> Any:
    """Return what a script answers on the page, or the error that it or the page raised."""
    problems = "<script>window.problems = []; onerror = (said) => problems.push(said);</script>"
    whole = (
        report.read_text("utf8").replace("<head>", f"<head>{problems}")
        + f"""<script>addEventListener('load', async () => {{
        let answer;
        try {{ {PRELUDE} answer = await (async () => {{ {script} }})(); }}
        catch (error) {{ answer = 'error: ' + error; }}
        parent.document.body.textContent = JSON.stringify(answer);
        }});</script>"""
    )
    # In a frame, since a window cannot be as narrow as a telephone.
    asked, style = report.with_name("asked.html"), f"border: 0; width: {width}px; height: 900px"
    asked.write_text(
        '<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        f'<body><iframe style="{style}" srcdoc="{html.escape(whole)}"></iframe></body>'
    )
    chosen = ["--window-size=1400,1000", f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}"]
    profile = f"--user-data-dir={report.parent.with_name('browser')}"
    command = [CHROMIUM, *FLAGS.split(), *chosen, profile, asked.as_uri()]
    dumped = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (body,) = re.findall(r"<body>(.*)</body>", dumped, re.DOTALL)
    return json.loads(html.unescape(body))


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_fits_the_screen_and_can_be_read(report, width, scheme):
    """Text stands out from the page by at least 4.5 to 1, every curve by 1.7; wide figures scroll
    on a telephone, and say so."""
    found = ask(
        report,
        """const style = getComputedStyle(document.documentElement);
        const drawn = all('figure svg').flatMap((svg) => svg.outerHTML.match(/--c-[0-9a-f]{6}/g));
        const names = ['--page', '--ink', '--muted', '--link', ...drawn];
        return {
          wide: document.documentElement.scrollWidth, inner: innerWidth,
          svgs: all('figure svg').map((svg) => svg.getBoundingClientRect().width),
          hints: all('figure.wide .hint').map((hint) => hint.offsetHeight > 0),
          scrolling: all('figure.wide .scroll').map((box) => box.scrollWidth > box.clientWidth),
          colours: Object.fromEntries(names.map((n) => [n, style.getPropertyValue(n).trim()])),
          fetched: performance.getEntriesByType('resource').map((entry) => entry.name),
          problems: window.problems,
        };""",
        width,
        scheme,
    )
    assert found["wide"] == found["inner"] == width
    assert len(found["svgs"]) >= 6
    assert min(found["svgs"]) > 300
    assert len(found["hints"]) >= 3
    assert all(shown == (width < 600) for shown in (*found["hints"], *found["scrolling"]))
    assert found["fetched"] == found["problems"] == []
    light = {name: luminance(colour) for name, colour in found["colours"].items()}
    page = light.pop("--page")
    assert page > 0.9 if scheme == "light" else page < 0.05
    for name in light.keys() - {"--c-ffffff", "--c-d4d4da"}:
        ratio = (max(page, light[name]) + 0.05) / (min(page, light[name]) + 0.05)
        assert ratio >= (1.7 if name.startswith("--c") else 4.5), name


def luminance(colour: str) -> float:
    """As sRGB defines it."""
    parts = [((v + 0.055) / 1.055) ** 2.4 if v > 0.04045 else v / 12.92 for v in to_rgb(colour)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def test_a_click_sorts_a_second_turns_the_order_and_empty_cells_stay_last(report):
    found = ask(
        report,
        """const place = heads.findIndex((head) => head.textContent === 'held-out loss');
        table.tBodies[0].rows[3].cells[place].dataset.value = '';
        return [1, 2].map(() => {
          heads[place].querySelector('button').click();
          const mark = getComputedStyle(heads[place].querySelector('button'), '::after').content;
          return [heads[place].ariaSort, mark, column(place)];
        });""",
    )
    assert [order for order, *_ in found] == ["ascending", "descending"]
    for (order, mark, (*values, last)), arrow in zip(found, "↑↓", strict=True):
        known = [float(value) for value in values]
        assert known == sorted(known, reverse=order == "descending")
        assert (last, arrow in mark) == ("", True)


def test_one_setting_is_found_by_its_name_and_nothing_is_said_to_be_nothing(report):
    found = ask(
        report,
        """const field = document.querySelector('input[data-filters="runs-1"]');
        return ['s = 16', 's = 16 seed1', 's = 16 seed17', 's = 1'].map((words) => {
          field.value = words;
          field.dispatchEvent(new Event('input'));
          return [field.nextElementSibling.textContent, column(0)];
        });""",
    )
    nothing = ["No row has this.", []]
    (several, names), (one, _), *none = found
    assert (several, one, none) == ("3 of 23 rows", "1 of 23 rows", [nothing, nothing])
    assert all("s16" in name for name in names)


def test_the_page_answers_before_it_lists(report):
    """Question, answer and a picture of it on the first screen, whose both halves are filled."""
    top, said = ask(
        report,
        """const parts = all('header .question, header .answer, header figure svg');
        const box = (part) => part.getBoundingClientRect();
        return [parts.map((part) => [part.textContent, box(part).left, box(part).bottom]),
          document.querySelector('header').textContent];""",
    )
    (asked, *_), (answer, *_), (_, left, bottom) = top
    assert asked.startswith("Which arm ends with a lower held-out next-token loss")
    assert re.match(r"\d+ settings against the baseline at equal FLOPs: ", answer)
    assert left > 600
    assert bottom < 900
    assert "reads bags of s tokens for a share r" in said


def test_what_scrolls_has_a_name_and_is_reached_by_keyboard(report):
    boxes = ask(
        report,
        """return all('.scroll').map((box) => {
          box.focus();
          return [box === document.activeElement, box.role, box.ariaLabel];
        });""",
        390,
    )
    assert len(boxes) >= 8
    assert all(reached and role == "region" and name for reached, role, name in boxes)
