"""The answer of `tst-study advise`: whether to superpose a planned run, how, and what to expect of
it. This module computes the numbers; the template `screen.jinja` has the sentences around them."""

import math
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tst_study.analysis import published
from tst_study.analysis.advice import planned_run
from tst_study.analysis.advice.planned_run import (
    ALWAYS,
    OUTPUT_ONLY,
    PLAIN,
    SMALL,
    Choice,
    PlannedRun,
    own_arm,
    pair_deviation,
)
from tst_study.analysis.fits.law.law_answer import CHINCHILLA, published_beside_law
from tst_study.analysis.fits.law.rows import settings
from tst_study.analysis.fits.law.superposition_law import published_law
from tst_study.analysis.statistics import POWER, smallest_detectable
from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.verdict.intervals import FEWEST_SEEDS
from tst_study.analysis.wording import signed
from tst_study.config.schema import load
from tst_study.cost.compute import count_flops, count_parameters, gpu_hours
from tst_study.cost.devices import DEVICES, PUBLISHED_MFU, device_named, published_mfu
from tst_study.cost.prices import range_of, rounded
from tst_study.errors import UserError, one_of
from tst_study.text import big, duration, memory_size, screen_width

TOKEN_BYTES = 4
"""Bytes that a token takes on disk, assumed for the printed size of the text."""
PILOT = 8
"""The factor by which the runs of the cheaper test (`_pilot`) are smaller than the planned run, in
parameters and in tokens. `advise` suggests running this test first."""
MOST_SEEDS = 12
"""The most pairs of runs that the cheaper test may have."""
WIDTH = 100
"""Largest width of a printed line, in columns; lines for a shell may be wider."""


@dataclass(frozen=True)
class Advice:
    """The answer of `advise`, for people (`sections`) and for programs (`data`)."""

    run: PlannedRun
    sections: dict[str, list[str]]
    """Paragraphs by the title of their section; those that start with `$ ` are lines for a
    shell."""
    data: dict[str, Any]
    """The same answer as JSON values: the numbers by name, and the sections under `said`."""

    def lines(self) -> list[str]:
        """Return lines for the terminal, wrapped to its width, or to 100 columns if it is wider.
        Lines for a shell are not wrapped."""
        width = min(WIDTH, screen_width())
        lines = wrap(self.run.title, width)
        for title, paragraphs in self.sections.items():
            lines.append(title)
            for text in paragraphs:
                if text.startswith("$ "):
                    lines += [f"    {line}" for line in text[2:].splitlines()]
                else:
                    lines += wrap(text, width, initial_indent="  ", subsequent_indent="    ")
        return lines

    def _repr_html_(self) -> str:
        """Show in a notebook what the command shows."""
        words = "\n".join(self.lines())
        return f"<pre>{escape(words)}</pre>"


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
    """Say whether to superpose a planned run.

    `params`: parameters of the model. `active`: parameters that one token uses, for a mixture of
    experts; all of them by default. `tokens`: latent tokens, which are the tokens that a baseline
    reads. `text`: tokens of text that are available; without limit by default. `device` (such as
    `H100`), `gpus` and `price` (of a GPU-hour): needed for hours and costs only. `flops`: FLOPs of
    the whole run; by default 6 N D with N active parameters.

    Raises `UserError` for a number that is not finite and above 0, for more active parameters than
    parameters, for `gpus` or `price` without `device`, and for a device that `cost.devices` does
    not list.
    """
    _check(
        device,
        params=params,
        tokens=tokens,
        active=active,
        text=text,
        gpus=gpus,
        price=price,
        flops=flops,
    )
    run = PlannedRun(params, active or params, tokens, text or math.inf)
    flops = flops or 6 * run.size * tokens
    hours, mfu, source = _hours(run, flops, device)
    raw = run.raw
    spent = f"{range_of(hours, rounded)} GPU-hours"
    if gpus:
        spans = dict.fromkeys(duration(3600 * end / gpus) for end in hours)
        spent += f" ({' to '.join(spans)} on {gpus} GPUs)"
    if price:
        cost = range_of([price * end for end in hours], rounded)
        spent += f", which costs {cost} (at {price:g} per GPU-hour)"

    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined
    )
    templates.filters |= {"signed": signed, "big": big, "rounded": rounded}
    # The template calls functions of `planned_run`, such as `own_arm`, with constants of that
    # module, the labels of arms, as arguments. So it is given all names of the module.
    screen = templates.get_template("screen.jinja").render(
        vars(planned_run) | _known(),
        run=run,
        far=_far(run),
        alike=_alike(run),
        same_loss_at=lambda gain: _same_loss(run, gain),
        gpu_hours=lambda share: f"{range_of([share * end for end in hours], rounded)} GPU-hours",
        text_worth=CHINCHILLA.loss(run.size, tokens)
        - CHINCHILLA.loss(run.size, raw)
        - run.lost(run.setting),
        raw=raw,
        size=memory_size(raw * TOKEN_BYTES).replace(".0 GB", " GB"),
        hours=hours,
        mfu=mfu,
        flops=flops,
        spent=spent,
        pilot=_pilot(run),
        large=run.size >= SMALL,
    )
    sections = {}
    for section in screen.strip("# \n").split("\n# "):
        title, *paragraphs = section.strip().split("\n- ")
        sections[title.strip()] = [text.strip() for text in paragraphs]
    data = {
        "asked": {"params": params, "active": run.size, "tokens": tokens, "text": text},
        "grade": run.grade,
        "setting": asdict(run.setting),
        "gain": asdict(run.gain),
        "raw_tokens": raw,
        "flops": flops,
        "gpu_hours": hours or None,
        "mfu_source": source,
        "said": sections,
    }
    return Advice(run, sections, data)


def _check(device: str | None, **numbers: float | None) -> None:
    given = {name: value for name, value in numbers.items() if value is not None}
    for name, value in given.items():
        if not 0 < value < math.inf:
            raise UserError(f"--{name} {value!r}: give a number above 0")
    if given.get("active", 0) > given["params"]:
        more = big(given["active"]), big(given["params"])
        raise UserError("--active {}: more than the {} of --params".format(*more))
    if device is None and given.keys() & {"gpus", "price"}:
        raise UserError("--gpus and --price: name the --device, too, such as H100")


def advise_config(config: str | Path, **more: Any) -> Advice:
    """Advise on the run that a config file describes: parameters, latent tokens and FLOPs are
    computed from the config, and `more` are further arguments of `advise`.

    Raises `UserError` for a wrong config, and as `advise` does."""
    run = load(config)
    count, flops = count_parameters(run.model), float(count_flops(run).total)
    tokens = float(run.schedule.last_step * run.batch.positions)
    return advise(count.total, tokens, active=count.active, flops=flops, **more)


def _known() -> dict[str, Any]:
    """Return the numbers of the paper and of our campaigns that the screen quotes for every run."""
    law = published_law().rows
    figure_6 = published.curves(6).groupby("run")["loss"].last()
    runs = published.headline_runs()
    losses = runs.set_index(["params", "method", "total_steps"])["final_loss"]
    shares = {}
    for size in ("3B", "10B-A1B"):
        (tst,) = rows_of(runs[(runs["params"] == size) & (runs["method"] == "tst")])
        no_better = runs["final_loss"] >= tst["final_loss"]
        baselines = runs[(runs["params"] == size) & (runs["method"] == "baseline") & no_better]
        shares[size] = tst["total_steps"] / baselines["total_steps"].max()
    uniform = law[(law["bag_size"] > 1) & (law["weighting"] == "uniform")]
    best = uniform.loc[uniform.groupby("level")["loss"].idxmin(), "bag_size"]
    return {
        "fitted": f"{' and '.join(sorted(law['size'].unique()))} parameters, "
        f"{big(law['tokens'].min())} to {big(law['tokens'].max())} tokens",
        "always": "s = {}, r = {}".format(*ALWAYS),
        "checks": {row["run"]: row for row in rows_of(published_beside_law(published_law()))},
        "same_text": losses["3B", "tst", 20_000] - losses["3B", "baseline", 50_000],
        "shares": shares,
        "figure_6": (figure_6["baseline"] - figure_6).to_dict(),
        "best_bags": f"{best.min():.0f} to {best.max():.0f}",
        "own": published.evidence()["own"],
        "power": POWER,
        "token_bytes": TOKEN_BYTES,
    }


def _far(run: PlannedRun) -> str:
    """Say how far a run lies outside the sizes and lengths that the law was fitted to, such as `12
    times larger and 10 times longer`; return an empty text for a run inside them."""
    words = {"params": ("smaller", "larger"), "tokens": ("shorter", "longer")}
    far = [
        f"{big(float(f'{math.exp(abs(folds)):.2g}'))} times {words[name][folds > 0]}"
        for name, folds in run.beyond.items()
        if abs(folds) > planned_run.SLIGHT
    ]
    return " and ".join(far)


def _alike(run: PlannedRun) -> dict[str, Any] | None:
    """Return how little the choice of s and r matters, by the law at the run's size and length
    (clipped to the fitted ranges).

    `within`: the standard deviation of the difference of two runs, nats per token. `best`: the s
    and r with the largest gain. `ends`: among the settings whose gain is at most `within` below
    that of `best`, those with the smallest and the largest s, each with its best r, in words.
    Returns None if the advised setting is not `ALWAYS`, if it repeats text, or if the grade is `no
    evidence`.
    """
    is_usual = run.setting == Choice(*ALWAYS) and run.raw <= run.text
    if not is_usual or run.mixture or run.grade == "no evidence":
        return None
    law = published_law()
    places = law.rows[["params", "tokens"]]
    size, tokens = np.clip([run.size, run.tokens], places.min(), places.max())
    rows = settings(size, tokens, np.arange(2.0, 17.0), np.arange(5, 61) / 100)
    rows["gain"], within = law.of_rows(rows), pair_deviation(law)
    best = rows.iloc[int(rows["gain"].argmax())]
    level = rows[rows["gain"] >= best["gain"] - within]
    ends = level.loc[level.groupby("bag_size")["gain"].idxmax()].iloc[[0, -1]]
    return {
        "within": within,
        "best": (int(best["bag_size"]), float(best["step_ratio"])),
        "ends": [f"s = {row['bag_size']:.0f}, r = {row['step_ratio']:g}" for row in rows_of(ends)],
    }


def _hours(run: PlannedRun, flops: float, name: str | None) -> tuple[list[float], str, str | None]:
    """Return the least and the most GPU-hours of one arm, the MFUs behind them in words, and where
    these MFUs were published. If the hours are not known, return an empty list, the reason, and
    None. Raises `UserError` for a device that is not listed."""
    if name is None:
        return [], "hours and money: add --device H100 --gpus 64 --price 2.5", None
    listed = {device.name: device for device in DEVICES}
    device = device_named(name) or listed[one_of(name, listed, "--device")]
    mfu = published_mfu(device, experts=run.mixture)
    if mfu is None:
        return [], f"no MFU of such a model on {device.name} is published here", None
    hours = [gpu_hours(flops, device.peak, at) for at in (mfu.high, mfu.low)]
    is_own = (device.name, "mixture" if run.mixture else "dense") in PUBLISHED_MFU
    like = f" for {device.like}" if device.like and not is_own else ""
    words = f"{device.name} at MFUs published{like}, {100 * mfu.low:.0f}–{mfu.high:.0%}"
    return hours, words, mfu.source


def _pilot(run: PlannedRun) -> dict[str, Any]:
    """Plan the cheaper test: several pairs of runs, each a baseline and a superposed run.

    Their size and length are an eighth (`PILOT`) of the planned ones, or equal to them for a small
    run (`SMALL`). The number of pairs is the smallest, from `FEWEST_SEEDS` to `MOST_SEEDS`, that
    detects, with a power of 80%, a gain as large as the one expected of the planned run. It is
    `MOST_SEEDS` if even that many do not. If the expected gain has no number, the test is to detect
    twice a pair's standard deviation.

    `seeds`: the number of pairs. `least`: the gain that they detect, nats per token. `noise`: the
    standard deviation of a pair's difference, nats per token; `source` says where it comes from.
    `gain`: the gain that the law predicts for the test's runs; None for a small run, and if the law
    says nothing about them or about the planned run. `smaller`: how many times smaller the test's
    runs are. `share`: FLOPs of the whole test over those of one planned run.
    """
    small = bool(run.own) or run.size < SMALL
    down = 1 if small else PILOT
    pilot = PlannedRun(run.params / down, run.size / down, run.tokens / down, run.text / down)
    noise, source = pair_deviation(published_law()), "as published runs do about the law"
    if pilot.size < SMALL:
        arm = own_arm(OUTPUT_ONLY if run.setting.output_only else PLAIN)
        noise, source = arm["deviation"], f"as in our {arm['source']}"
    gain = abs(run.gain.nats or 2 * noise)
    counts = range(FEWEST_SEEDS, MOST_SEEDS + 1)
    shown = [(n, (smallest_detectable(n) or math.inf) * noise) for n in counts]
    seeds, least = next((pair for pair in shown if pair[1] <= gain), shown[-1])
    known = run.gain.nats is not None and pilot.grade != "no evidence" and not small
    place = settings(pilot.size, pilot.tokens, run.setting.bag_size, run.setting.step_ratio)
    gain_there = float(published_law().of_rows(place)[0]) - pilot.lost(run.setting)
    return {
        "gain": gain_there if known else None,
        "seeds": seeds,
        "least": least,
        "noise": noise,
        "source": source,
        "smaller": down,
        "share": 2 * seeds / down**2,
    }


def _same_loss(run: PlannedRun, gain: float) -> float:
    """Return the smallest share of the baseline's steps, in whole hundredths, with which a
    superposed run ends at or below the baseline's loss, if it is planned for that many steps from
    the start; 1 if no shorter run does.

    The loss of a baseline falls with its length by Chinchilla's data term. `gain` is the gain at
    full length, nats per token; at shorter lengths it is scaled by the ratio of the gains that the
    law of superposition gives at the two lengths.
    """
    shares = np.arange(1, 101) / 100
    lengths = shares * run.tokens
    place = settings(run.size, run.tokens, run.setting.bag_size, run.setting.step_ratio)
    law = published_law().of_rows(place.iloc[[0] * len(shares)].assign(tokens=lengths))
    behind = CHINCHILLA.loss(run.size, lengths) - CHINCHILLA.loss(run.size, run.tokens)
    reached = behind <= gain * law / law[-1]
    return float(shares[reached].min(initial=1.0))
