"""The live page in a real browser: curves of running runs beside their baselines', renewed."""

from __future__ import annotations

import itertools
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from experiments.runs.status import StatusRow, rows_below
from experiments.runs.watch import kept, seconds_left, serve
from tests.paper_figures.browser import NAMES, Browser, executable, headless
from tests.run.test_record import evaluation, metrics, open_run
from tst_study.run import lock
from tst_study.run.writer import RunWriter

BAGS = "superposition={bag_size=4, step_ratio=0.2}"


def begun(folder: Path, *overrides: str) -> RunWriter:
    """Ten steps of bags, if any, then fifty of tokens."""
    writer = open_run(folder, *overrides)
    segment = writer.start_segment(None, {})
    for step in range(1, 61):
        size = 4 if BAGS in overrides and step <= 10 else 1
        writer.metrics(
            {**metrics(segment, step, 9.0 if size > 1 else 5 - step / 30), "bag_size": size}
        )
    writer.evaluation(evaluation(segment, 50, 3.25))
    writer.status("running", 60, phase="recovery", loss=3.0, seconds_left=80.0)
    return writer


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    begun(tmp_path / "base-seed0", "role=baseline").status("done", 100)
    begun(tmp_path / "s4-seed0", "role=superposition", BAGS)
    begun(tmp_path / "other-steps", "schedule.steps=50", "role=baseline").status("done", 50)
    with lock.hold(tmp_path / "s4-seed0"):
        yield tmp_path


@pytest.fixture
def address(root: Path) -> Iterator[str]:
    with serve(lambda: rows_below(root), root, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


def row(state: str, step: int, left: float | None) -> StatusRow:
    return StatusRow("run", state, step, 100, "", None, None, left, "")


def test_time_left_is_that_of_what_runs_and_of_what_waits() -> None:
    """Two train at 1 s a step with 50 s each to go; 100 steps wait: 200 s of work for two."""
    rows = [row("running", 50, 50.0), row("running", 50, 50.0), row("waiting", 0, None)]
    assert seconds_left([*rows, row("done", 100, None)]) == pytest.approx(100.0)
    assert seconds_left(rows[2:]) is None
    assert seconds_left([row("running", 0, 100.0), row("running", 90, 10.0)]) == pytest.approx(
        100.0
    )


def test_it_answers_to_its_own_name_only(address: str) -> None:
    with urllib.request.urlopen(address) as page:
        assert b"s4-seed0, running, 60 of 100, recovery, held-out 3.2500, 80 s left" in page.read()
    stranger = urllib.request.Request(address, headers={"Host": "elsewhere.example"})
    for asked in (stranger, f"{address}status.json"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(asked)


def test_a_folder_s_name_is_only_a_name(tmp_path: Path) -> None:
    root = tmp_path / "MY-RUNS" / "$runs TITLE <b>"
    begun(root / "base-seed0", "role=baseline").close()
    with serve(lambda: rows_below(root), root, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_address[1]}/") as page:
            text = page.read().decode()
        server.shutdown()
        thread.join()
    assert f"<h1>{tmp_path}/MY-RUNS/$runs TITLE &lt;b&gt;</h1>" in text
    assert text.count("<figure>") == 1


def test_those_who_ask_at_once_share_one_look(root: Path) -> None:
    looks = []

    def slow() -> list[StatusRow]:
        looks.append(1)
        time.sleep(0.5)
        return rows_below(root)

    with serve(slow, root, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{server.server_address[1]}/runs"
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: urllib.request.urlopen(address).read(), range(4)))
        server.shutdown()
        thread.join()
    assert len(looks) == len(set(answers)) == 1


def test_an_answer_is_kept_for_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = 0.0, itertools.count()
    monkeypatch.setattr("experiments.runs.watch.time.monotonic", lambda: now)
    answer = kept(30.0, lambda: next(asked))
    assert [answer(), answer()] == [0, 0]
    now = 30.5
    assert [answer(), answer()] == [1, 1]


@pytest.fixture
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if executable() is None:
        pytest.skip(f"no browser on the PATH ({', '.join(NAMES)})")
    with headless(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_run_is_drawn_beside_its_baseline(
    browser: Browser, address: str, tmp_path: Path, width: int, scheme: str
) -> None:
    browser.open(address, width, scheme)
    assert browser.run("document.documentElement.scrollWidth") == width
    panels = browser.run(
        "[...document.querySelectorAll('figure')].map(figure => "
        "[...figure.querySelectorAll('g title')].map(title => title.textContent))"
    )
    assert panels == [["base-seed0", "s4-seed0"], ["other-steps"]]
    points = "document.querySelector('g.running polyline').points.numberOfItems"
    assert browser.run(points) == 40  # losses of bags are left out, and the first fall
    widths = "[...document.querySelectorAll('polyline')].map(l => getComputedStyle(l).strokeWidth)"
    assert browser.run(widths) == ["1.2px", "2.4px", "1.2px"]
    strokes = "[...document.querySelectorAll('polyline')].map(l => getComputedStyle(l).stroke)"
    assert len(set(browser.run(strokes))) == 2
    assert "all end in about 80 s" in browser.run("document.querySelector('.sums').textContent")
    assert browser.screenshot(tmp_path / "page.png")[:4] == b"\x89PNG"


def test_it_renews_itself_and_says_when_nobody_answers(
    browser: Browser, root: Path, tmp_path: Path
) -> None:
    with serve(lambda: rows_below(root), root, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        browser.open(address, 1280)
        writer = open_run(root / "s4-seed0", "role=superposition", BAGS)
        for step in range(61, 71):
            writer.metrics({**metrics(0, step, 2.9), "bag_size": 1})
        while browser.run("document.querySelector('g.running polyline').points.numberOfItems") < 50:
            pass
        assert {url.removeprefix(address) for url in browser.requests} <= {"", "runs", "data:,"}
        server.shutdown()
        thread.join()
    while browser.run("document.querySelector('#key').className") != "lost":
        pass
    assert "has ended" in browser.run("document.querySelector('#key').textContent")


def test_it_does_not_ask_again_while_it_waits_for_an_answer(browser: Browser, root: Path) -> None:
    first, answers = [1], threading.Event()

    def look() -> list[StatusRow]:
        if not first:
            answers.wait(60)
        first.clear()
        return rows_below(root)

    with serve(look, root, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            browser.open(f"http://127.0.0.1:{server.server_address[1]}/", 1280)
            while not (asked := [url for url in browser.requests if url.endswith("/runs")]):
                browser.run("0")
            time.sleep(3.0)
            browser.run("0")
            assert [url for url in browser.requests if url.endswith("/runs")] == asked
        finally:
            answers.set()
            server.shutdown()
            thread.join()
