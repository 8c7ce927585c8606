"""`tst-study advise`: whether to superpose a run that is planned, how, and what to expect of it.
`screen.jinja` has the words."""

from __future__ import annotations

import math
from base64 import b64encode
from dataclasses import asdict, dataclass
from html import escape
from io import BytesIO
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tst_study.analysis import published
from tst_study.analysis.advice.expected import expected, pair_deviation
from tst_study.analysis.advice.planned_run import Gain, PlannedRun, own_arm, own_gain
from tst_study.analysis.fits.law.held_out import nearest, observed_gains
from tst_study.analysis.fits.law.law_answer import CHINCHILLA
from tst_study.analysis.fits.law.rows import settings
from tst_study.analysis.fits.law.superposition_law import published_law
from tst_study.analysis.statistics import smallest_detectable
from tst_study.analysis.verdict.intervals import FEWEST_SEEDS
from tst_study.analysis.wording import signed
from tst_study.config.schema import load
from tst_study.cost.compute import count_flops, count_parameters, gpu_hours
from tst_study.cost.devices import DEVICES, device_named, published_mfu
from tst_study.errors import one_of
from tst_study.text import big, duration, memory_size

REPEATS, REPEATED_DATA = 15.387756, (1487.7, 0.3526596)
"""R* and, of the data term, B and β of Muennighoff et al. 2023 (arXiv 2305.16264)."""
TOKEN_BYTES = 4
PILOT = 8
"""How much smaller the cheaper test is, in parameters and in tokens."""
SMALL = 1e7
"""Parameters up to which our campaigns' deviations count, and the test is of full size."""
MOST_SEEDS = 12
WIDTH = 100


@dataclass(frozen=True)
class Advice:
    """The answer of `advise`, for people (`sections`) and for programs (`data`)."""

    run: PlannedRun
    sections: dict[str, list[str]]
    data: dict[str, Any]

    def lines(self) -> list[str]:
        """For a terminal."""
        found = [self.run.title]
        for title, said in self.sections.items():
            found.append(title)
            for line in said:  # a command is to be copied whole
                width = len(line) + 4 if line.startswith("$ ") else WIDTH
                found += wrap(line, width, initial_indent="  ", subsequent_indent="    ")
        return found

    def _repr_html_(self) -> str:
        parts = [f'<img src="data:image/png;base64,{b64encode(self._repr_png_()).decode()}">']
        for title, said in self.sections.items():
            parts += [f"<h4>{escape(title)}</h4>", *(f"<p>{escape(line)}</p>" for line in said)]
        return "\n".join(parts)

    def _repr_png_(self) -> bytes:
        """Draw the expected gain over s at the r advised, and the published points nearby."""
        from matplotlib.figure import Figure

        law, run, r = published_law(), self.run, self.run.setting.step_ratio
        rows = settings(run.size, run.tokens, np.arange(2.0, 17.0), r)
        gains, half = expected(law, rows, published.evidence()["error"])
        cells = law.rows.assign(gain=observed_gains(law.rows)).query(
            "bag_size > 1 and weighting == 'uniform' and abs(step_ratio - @r) < 0.051"
        )
        near = nearest(cells, run.size, run.tokens)
        where = f"published: {near['size'].iloc[0]}, {big(near['tokens'].iloc[0])} tokens"
        figure = Figure(figsize=(6, 3.5), layout="constrained")
        axes, s = figure.subplots(), rows["bag_size"]
        axes.fill_between(s, gains - half, gains + half, alpha=0.2, label="95% for one pair")
        axes.plot(s, gains, label=f"law of Tables 4–7 ({run.grade})")
        axes.plot(near["bag_size"], near["gain"], "ko", ms=3, label=f"{where}, r within 0.05")
        axes.axhline(0, color="grey", lw=0.8)
        axes.set(xlabel="bag size s", ylabel="gain, nats per token", title=run.title)
        axes.legend(fontsize=8)
        drawn = BytesIO()
        figure.savefig(drawn, dpi=120)
        return drawn.getvalue()


def advise(
    params: float,
    tokens: float,
    *,
    active: float | None = None,
    text: float | None = None,
    gpus: int | None = None,
    device: str | None = None,
    price: float | None = None,
    flops: float | None = None,
) -> Advice:
    """Say whether to superpose a run of `params` parameters (`active` of them a token, in a
    mixture) and `tokens` latent tokens, which are those that a baseline reads.

    `text`: tokens of text that there are. `gpus`, `device`, `price` (of a GPU-hour): for hours and
    money. `flops`: of the run, where they are known better than 6 N D. Raises `UserError` for a
    device whose data sheet is not known here.
    """
    run = PlannedRun(params, active or params, tokens, text or math.inf)
    flops = flops or 6 * run.size * tokens
    hours, source = _hours(run, flops, device)
    raw = run.setting.text * tokens

    def spent(share: float) -> str:
        found = [share * end for end in hours or ()]
        words = [f"{_range(found)} GPU-hours"]
        if gpus:
            ends = dict.fromkeys(duration(3600 * end / gpus) for end in found)
            words.append(f"{'–'.join(ends)} on {gpus}")
        if price:
            words.append(f"{_range([price * end for end in found])} at {price:g} an hour")
        return ", ".join(words)

    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined
    )
    templates.filters |= {"signed": signed, "big": big, "nats": _nats, "shown": _shown}
    screen = templates.get_template("screen.jinja").render(
        run=run,
        near=run.nearest,
        setting=run.setting,
        short=run.setting != run.first,
        gain=run.gain,
        plain=own_arm("plain"),
        here=own_arm("plain"),
        batch=own_arm("better batch"),
        own_gain=own_gain,
        far=_far(run),
        alike=_alike(run),
        repetition=lambda read: _repetition(run.text, read),
        longer=lambda gain: _longer(gain, tokens),
        text_worth=_data_term(tokens) - _data_term(raw),
        raw=raw,
        size=memory_size(raw * TOKEN_BYTES).replace(".0 GB", " GB"),
        hours=hours,
        source=source,
        flops=flops,
        spent=spent,
        pilot=_pilot(run),
    )
    sections = {}
    for section in screen.strip("# \n").split("\n# "):
        title, *said = section.strip().split("\n- ")
        sections[title.strip()] = [line.strip() for line in said]
    data = {
        "asked": {"params": params, "active": run.size, "tokens": tokens, "text": text},
        "grade": run.grade,
        "setting": asdict(run.setting),
        "gain": asdict(run.gain),
        "raw_tokens": raw,
        "flops": flops,
        "gpu_hours": hours,
        "said": sections,
    }
    return Advice(run, sections, data)


def advise_config(config: str | Path, **more: Any) -> Advice:
    """Advise on the run of a config: its parameters, latent tokens, FLOPs; `more` as `advise`."""
    run = load(config)
    count, flops = count_parameters(run.model), float(count_flops(run).total)
    tokens = float(run.schedule.last_step * run.batch.positions)
    return advise(count.total, tokens, active=count.active, flops=flops, **more)


def _nats(gain: Gain) -> str:
    if gain.nats is None or gain.low is None or gain.high is None:
        return f"no number, {gain.source}"
    return f"{signed(gain.nats)} nats [{signed(gain.low)}, {signed(gain.high)}]"


def _shown(gain: Gain) -> str:
    return _nats(gain) + f" ({gain.source})" * (gain.nats is not None)


def _far(run: PlannedRun) -> str:
    names = {"params": "sizes", "tokens": "lengths"}
    far = [
        f"{math.exp(abs(folds)):,.2g} times {'above' if folds > 0 else 'below'} its {names[name]}"
        for name, folds in run.beyond.items()
        if folds
    ]
    return " and ".join(far)


def _alike(run: PlannedRun) -> dict[str, Any] | None:
    """Settings that the law does not tell apart, at the nearest size and length fitted."""
    if run.mixture or run.own or run.setting.output_only or run.grade == "no evidence":
        return None
    law = published_law()
    size, tokens = (
        float(np.clip(at, law.rows[name].min(), law.rows[name].max()))
        for name, at in (("params", run.size), ("tokens", run.tokens))
    )
    rows = settings(size, tokens, np.arange(2.0, 17.0), np.arange(5, 61) / 100)
    gains, within = law.of_rows(rows), pair_deviation(law)
    best, level = rows.iloc[int(gains.argmax())], rows[gains >= gains.max() - within]
    s, r = (level[name].agg(["min", "max"]) for name in ("bag_size", "step_ratio"))
    return {
        "within": within,
        "best": (int(best["bag_size"]), float(best["step_ratio"])),
        "s": f"{s['min']:.0f}–{s['max']:.0f}",
        "r": f"{r['min']:g}–{r['max']:g}",
    }


def _repetition(text: float, read: float) -> tuple[float, float, float]:
    """Epochs, the share of as much fresh text that they are worth, and the nats that they cost, by
    the law of repetition for plain training."""
    factor, exponent = REPEATED_DATA
    fresh = text * (1 - REPEATS * math.expm1((1 - read / text) / REPEATS))
    lost = factor * (fresh**-exponent - read**-exponent)
    return read / text, fresh / read, lost


def _hours(
    run: PlannedRun, flops: float, name: str | None
) -> tuple[tuple[float, float] | None, str]:
    """GPU-hours of one arm, the least and the most, and where the MFU behind them comes from."""
    if name is None:
        return None, "hours and money: --device H100 --price 2.5"
    device = device_named(name)
    if device is None:
        one_of(name, [one.name for one in DEVICES], "--device")
        raise AssertionError(name)
    mfu = published_mfu(device, experts=run.mixture)
    if mfu is None:
        return None, f"no MFU of such a model on {device.name} is published here"
    hours = gpu_hours(flops, device.peak, mfu.high), gpu_hours(flops, device.peak, mfu.low)
    return hours, f"{device.name} at {mfu.low:.0%}–{mfu.high:.0%} MFU, {mfu.source}"


def _pilot(run: PlannedRun) -> dict[str, Any]:
    """The fewest pairs that would show the expected gain, at an eighth of size and length."""
    small = bool(run.own) or run.size < SMALL
    down = 1 if small else PILOT
    noise, source = pair_deviation(published_law()), "scatter of published cells about the law"
    if small:
        noise, source = own_arm("output only")["deviation"], "our second campaign"
    gain = abs(run.gain.nats or 2 * noise)
    counts = range(FEWEST_SEEDS, MOST_SEEDS + 1)
    shown = [(n, (smallest_detectable(n) or math.inf) * noise) for n in counts]
    seeds, least = next((one for one in shown if one[1] <= gain), shown[-1])
    found = {"seeds": seeds, "least": least, "noise": noise, "source": source}
    return {
        **found,
        "size": run.size / down,
        "tokens": run.tokens / down,
        "share": 2 * seeds / down**2,
    }


def _data_term(tokens: float) -> float:
    return float(CHINCHILLA.terms(0.0, math.log(tokens))[2])


def _longer(gain: float, tokens: float) -> str:
    """How many times the steps a baseline needs to gain as much, by Chinchilla's data term."""
    left = 1 - gain / _data_term(tokens)
    return f"{left ** (-1 / CHINCHILLA.beta):.2g}" if left > 0 else "∞"


def _range(ends: list[float]) -> str:
    return "–".join(dict.fromkeys(f"{end:,.0f}" if end >= 100 else f"{end:.2g}" for end in ends))
