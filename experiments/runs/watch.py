"""`tst-study watch`: a live page, on this machine alone, of running runs beside their baselines."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from string import Template
from threading import Lock
from typing import TypeVar

from experiments.runs.status import StatusRow, sums
from tst_study import run_record
from tst_study.errors import UserError
from tst_study.run.identity import digest
from tst_study.run.identity_form import SEEDS, identity_form
from tst_study.units import duration

WIDTH, HEIGHT, MARGIN = 560, 240, 44
POINTS = 60
"""Of a curve, at most: means of as many neighbouring steps."""
PANELS = 12
RENEWED_EVERY = 2.0
"""Seconds for which all pages get the same answer; the page asks again after as many."""
Point = tuple[float, float]
T = TypeVar("T")


@dataclass(frozen=True)
class Curves:
    """Next-token losses of one run; those of bags are another quantity, and are left out."""

    name: str
    group: str
    """Equal for runs that differ in nothing but superposition: what is drawn together."""
    is_baseline: bool
    is_trunk: bool
    steps: int
    training: list[Point]
    held_out: list[Point]


def serve(look: Callable[[], Sequence[StatusRow]], root: Path, port: int) -> ThreadingHTTPServer:
    """A server on the loopback that answers with the page; whoever calls lets it serve, and
    closes it. `port`: 0 for a free one. Raises `UserError` for one that is taken."""
    text = kept(RENEWED_EVERY, lambda: panels(root, look()))

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # A page of another site must not read this one under a name that it gave itself.
            ours = self.headers.get("Host", "") in {
                f"{host}:{server.server_port}" for host in ("127.0.0.1", "localhost")
            }
            if not ours or self.path not in ("/", "/runs"):
                self.send_error(404)
                return
            answer = text()
            if self.path == "/":
                whole = Template(Path(__file__).with_name("watch.html").read_text("utf8"))
                answer = whole.substitute(title=escape(str(root)), runs=answer)
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, *words: object) -> None:
            pass

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Page)
    except OSError as error:
        said = (error.strerror or str(error)).lower()
        raise UserError(f"--port {port}: {said}; give another one, or none") from None
    return server


def kept(seconds: float, ask: Callable[[], T]) -> Callable[[], T]:
    """The same, asked once by all at a time, and not again for some seconds after its answer."""
    lock, answers = Lock(), list[tuple[float, T]]()

    def answer() -> T:
        with lock:
            if not answers or time.monotonic() - answers[0][0] > seconds:
                found = ask()
                answers[:] = [(time.monotonic(), found)]
            return answers[0][1]

    return answer


def seconds_left(rows: Sequence[StatusRow]) -> float | None:
    """Seconds until the runs that wait are done as well, at the pace and number of those that
    train now; None while none has a pace."""
    training = [row for row in rows if row.seconds_left and row.steps > row.step]
    if not training:
        return None
    left = sum(row.seconds_left or 0.0 for row in training)
    pace = left / sum(row.steps - row.step for row in training)
    waiting = [row for row in rows if row.state in ("waiting", "queued", "preempted")]
    left += pace * sum(row.steps - row.step for row in waiting)
    longest = max(row.seconds_left or 0.0 for row in training)
    return max(left / len(training), longest)


def panels(root: Path, rows: Sequence[StatusRow]) -> str:
    """The part of the page that changes: sums, then a picture per baseline with all that is held
    against it, those with a running run first."""
    left = seconds_left(rows)
    said = f"{sums(rows)}{'' if left is None else f' | all end in about {duration(left)}'}"
    state = {row.run_id: row for row in rows}
    groups: dict[str, list[Curves]] = defaultdict(list)
    for row in rows:
        found = curves(root / row.run_id, _stamp(root / row.run_id))
        # What a trunk logged stands in its branches, too.
        if found is not None and (not found.is_trunk or row.state == "running"):
            groups[found.group].append(found)

    def running(group: list[Curves]) -> bool:
        return any(state[one.name].state == "running" for one in group)

    chosen = sorted(groups.values(), key=lambda group: not running(group))[:PANELS]
    drawn = "".join(_panel(group, state) for group in chosen)
    return f'<p class="sums">{escape(said)}</p>\n{drawn or "<p>No run has begun.</p>"}'


def _stamp(folder: Path) -> tuple[int, ...]:
    """Changes with what the curves are made of."""
    files = (folder / name for name in ("metrics.jsonl", "evals.jsonl"))
    return tuple(file.stat().st_size if file.exists() else 0 for file in files)


@lru_cache(1024)
def curves(folder: Path, stamp: tuple[int, ...]) -> Curves | None:
    """None for a run that has no record yet, or none that can be read."""
    try:
        record = run_record.read(folder)
    except UserError:
        return None
    config, schedule = record.header["config"], record.header["config"]["schedule"]
    apart = ("superposition", *SEEDS, "schedule.stop_after")
    every = [
        (row["step"], loss)
        for row in record.metrics
        if row["bag_size"] == 1 and (loss := row["loss"]) is not None
    ]
    size = max(1, len(every) // POINTS)
    pieces = [every[at : at + size] for at in range(0, len(every), size)]
    return Curves(
        folder.name,
        digest(identity_form(config, record.header["data"], apart)),
        record.header["role"] == "baseline",
        record.header["role"] == "trunk",
        schedule["steps"],
        [(piece[-1][0], sum(loss for _, loss in piece) / len(piece)) for piece in pieces],
        [
            (row["step"], row["nats_per_token"])
            for row in record.evals
            if row["phase"] == "recovery"
        ],
    )


def _panel(group: Sequence[Curves], state: dict[str, StatusRow]) -> str:
    steps = max(one.steps for one in group)
    late = [y for one in group for x, y in (*one.training, *one.held_out) if x > steps / 5]
    late = late or [y for one in group for _, y in (*one.training, *one.held_out)] or [0.0, 1.0]
    low, high = min(late), max(max(late), min(late) + 0.01)

    def place(point: Point) -> str:
        x = MARGIN + point[0] / steps * (WIDTH - 2 * MARGIN)
        y = MARGIN / 2 + (high - point[1]) / (high - low) * (HEIGHT - 1.5 * MARGIN)
        return f"{x:.1f},{y:.1f}"

    lines, legend = [], []
    for number, one in enumerate(sorted(group, key=lambda one: (not one.is_baseline, one.name))):
        row, kind = state[one.name], "baseline" if one.is_baseline else f"c{number % 6}"
        kind += " running" if row.state == "running" else ""
        title = f"<title>{escape(one.name)}</title>"
        line = " ".join(place(point) for point in one.training if point[1] <= high)
        lines.append(f'<g class="{kind}">{title}<polyline points="{line}"/>')
        for point in (point for point in one.held_out if point[1] <= high):
            x, y = place(point).split(",")
            lines.append(f'<circle cx="{x}" cy="{y}" r="3"/>')
        lines.append("</g>")
        legend.append(f'<li class="{kind}"><i></i>{escape(_words(one, row))}</li>')
    axes = "".join(
        f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>'
        for x, y, anchor, text in (
            (MARGIN - 6, MARGIN / 2 + 4, "end", f"{high:.2f}"),
            (MARGIN - 6, HEIGHT - MARGIN + 4, "end", f"{low:.2f}"),
            (MARGIN, HEIGHT - MARGIN / 2, "start", "0"),
            (WIDTH - MARGIN, HEIGHT - MARGIN / 2, "end", f"{steps:,} steps"),
        )
    )
    label = f"Next-token loss over {steps:,} steps of {len(group)} runs"
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{axes}'
        f"{''.join(lines)}</svg><ul>{''.join(legend)}</ul></figure>\n"
    )


def _words(one: Curves, row: StatusRow) -> str:
    parts = [one.name, row.state, f"{row.step:,} of {row.steps:,}" if row.steps else "", row.phase]
    if row.held_out is not None:
        parts.append(f"held-out {row.held_out:.4f}")
    if row.seconds_left:
        parts.append(f"{duration(row.seconds_left)} left")
    return ", ".join(filter(None, parts))
