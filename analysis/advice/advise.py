"""`tst-study advise`: whether to superpose a run that is planned, how, and what to expect of it."""

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

from tst_study.analysis import published
from tst_study.analysis.advice.expected import expected, pair_deviation
from tst_study.analysis.advice.planned_run import (
    BETTER_BATCH,
    OUTPUT_ONLY,
    PLAIN,
    Gain,
    PlannedRun,
    own_gain,
    plain_here,
)
from tst_study.analysis.fits.law.answer import CHINCHILLA
from tst_study.analysis.fits.law.held_out import nearest, observed_gains
from tst_study.analysis.fits.law.rows import settings
from tst_study.analysis.fits.law.superposition_law import published_law
from tst_study.analysis.wording import signed
from tst_study.config.schema import load
from tst_study.cost.compute import count_flops, count_parameters, gpu_hours
from tst_study.cost.devices import DEVICES, device_named, published_mfu
from tst_study.errors import one_of
from tst_study.statistics import smallest_detectable
from tst_study.text import big, duration, memory_size

REPEATS, REPEATED_DATA = 15.387756, (1487.7, 0.3526596)
"""R* and, of the data term, B and β of Muennighoff et al. 2023 (arXiv 2305.16264)."""
_TOKEN_BYTES = 4
_PILOT = 8
"""How much smaller the cheaper test is, in parameters and in tokens."""
_MOST_SEEDS = 12
_WIDTH = 100


@dataclass(frozen=True)
class Advice:
    """What `advise` says, for people (`sections`) and for programs (`data`)."""

    run: PlannedRun
    sections: dict[str, list[str]]
    data: dict[str, Any]

    def lines(self) -> list[str]:
        """For a terminal."""
        found = [_title(self.run)]
        for title, said in self.sections.items():
            found.append(title)
            for line in said:
                found += wrap(line, _WIDTH, initial_indent="  ", subsequent_indent="    ")
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
        axes.set(xlabel="bag size s", ylabel="gain, nats per token", title=_title(run))
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
    sections = {
        "Verdict": _verdict(run),
        "What to run": _what(run),
        "What it should bring": _brings(run),
        "What it costs": _costs(run, flops, hours, source, gpus, price),
        "What speaks against it": _against(run),
        "How to find out for less": _for_less(run),
    }
    data = {
        "asked": {"params": params, "active": run.size, "tokens": tokens, "text": text},
        "grade": run.grade,
        "setting": asdict(run.setting),
        "gain": asdict(run.gain),
        "raw_tokens": run.setting.text * tokens,
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


def _title(run: PlannedRun) -> str:
    of = f" ({big(run.size)} active)" if run.mixture else ""
    return f"{big(run.params)}{of} parameters, {big(run.tokens)} tokens"


def _nats(gain: Gain) -> str:
    if gain.nats is None or gain.low is None or gain.high is None:
        return f"no number, {gain.source}"
    return f"{signed(gain.nats)} nats [{signed(gain.low)}, {signed(gain.high)}]"


def _shown(gain: Gain) -> str:
    return _nats(gain) + f" ({gain.source})" * (gain.nats is not None)


def _verdict(run: PlannedRun) -> list[str]:
    short, low = run.setting != run.first, run.gain.low
    if OUTPUT_ONLY in run.own and not short:
        plain, batch = run.own[PLAIN], run.own.get(BETTER_BATCH)
        rival = f" and a better batch {signed(batch['gain'])}" if batch else ""
        said = f"Not in the paper's form, which gained {signed(plain['gain'])} here{rival}"
        said += f": tune the batch, then try {run.setting}"
    elif run.own and not short:
        lost = run.gain.high is not None and run.gain.high < 0
        said = f"No: here {run.setting} {'lost' if lost else 'was not shown to gain'}"
    elif run.grade == "no evidence":
        said = "Nobody has trained anything near this; test it on a small pair first"
    elif low is None:
        said = f"Not with bags at the input: there is too little text. Try {run.setting}"
    elif low <= 0:
        said = f"Perhaps: {run.setting} may help, but the interval includes no gain"
    elif short:
        said = f"Yes, as far as the text allows: {run.setting} should lower the loss"
    else:
        said = f"Yes, if there is text for it: {run.setting} should lower the loss"
    return [f"{said}: {_nats(run.gain)}.", _evidence(run)]


def _evidence(run: PlannedRun) -> str:
    near = run.nearest
    copied = (
        f"copying the nearest published run ({near['label']}) would say {signed(near['gain'])} "
        f"({near['source']})"
    )
    if run.grade == "measured":
        return f"Evidence: measured, {'in our campaigns' if run.own else near['label']}."
    if run.grade == "inside the law's fit":
        return f"Evidence: {run.grade}, between published sizes and lengths; {copied}."
    names = {"params": "sizes", "tokens": "lengths"}
    far = [
        f"{math.exp(abs(folds)):,.2g} times {'above' if folds > 0 else 'below'} its {names[name]}"
        for name, folds in run.beyond.items()
        if folds
    ]
    said = f"the law is fitted to 270M–600M and 42B–210B tokens, this is {' and '.join(far)}"
    said = "one mixture was published" if run.mixture else said
    said = f"Evidence: {run.grade}; {said}; {copied}."
    if run.grade == "extrapolated" and run.beyond["params"] > 0 and not run.mixture:
        said += " At 3B the law says 0.0731; Figure 3a shows 0.0734, Table 1 prints 0.132."
    if run.grade == "no evidence" and run.beyond["params"] < 0:
        here = plain_here()
        size = f"{big(here['params'])}, {big(here['tokens'])} tokens"
        said += f" On the other side ({size}): {_shown(own_gain(here))}."
    return said


def _what(run: PlannedRun) -> list[str]:
    said = [f"{run.setting}; all else (learning rate, schedule, batch) as in the tuned baseline."]
    if run.mixture and not run.setting.output_only:
        said[0] += " Of mixtures no other setting than s = 16, r = 0.25 was published."
    elif not run.own and not run.setting.output_only and run.grade != "no evidence":
        said.append(_alike(run))
    whole = run.first.text * run.tokens
    if run.text < whole:
        said.append(
            f"Text is short: {run.first} reads {big(whole)} tokens, {whole / run.text:.2g} times "
            f"what there is. {_repeated(run.text, whole)} Nobody has tried it with superposed text "
            "above 0.4M weights; there, read 11 times, it still gained (docs/findings.md)."
        )
    if run.text < run.tokens:
        said.append(f"The baseline, too, reads its text again. {_repeated(run.text, run.tokens)}")
    if not run.own:
        said.append(
            "Where text is short, output only (tokens in, bags out) reads no more than the "
            "baseline. The paper's Figure 6: 3.050; both sides 3.010, baseline 3.087."
        )
    return said


def _alike(run: PlannedRun) -> str:
    """Settings that the law does not tell apart, at the nearest size and length fitted."""
    law = published_law()
    size, tokens = (
        float(np.clip(at, law.rows[name].min(), law.rows[name].max()))
        for name, at in (("params", run.size), ("tokens", run.tokens))
    )
    rows = settings(size, tokens, np.arange(2.0, 17.0), np.arange(5, 61) / 100)
    gains, pair = law.of_rows(rows), pair_deviation(law)
    best, level = rows.iloc[int(gains.argmax())], rows[gains >= gains.max() - pair]
    ends = [level[name].agg(["min", "max"]) for name in ("bag_size", "step_ratio")]
    ranges = "{:.0f}–{:.0f}, r = {:.2g}–{:.2g}".format(*ends[0], *ends[1])
    return (
        f"Within {pair:.3f} nats of the best, by which two runs differ anyway: s = {ranges}. The "
        f"law's own choice is s = {best['bag_size']:.0f}, r = {best['step_ratio']:.2g}; where "
        "sizes and lengths were left out, it was not shown to choose better than always s = 6, "
        "r = 0.3 (docs/analysis.md)."
    )


def _repeated(text: float, read: float) -> str:
    """What it costs to read a text several times, by the law of repetition for plain training."""
    factor, exponent = REPEATED_DATA
    fresh = text * (1 - REPEATS * math.expm1((1 - read / text) / REPEATS))
    lost = factor * (fresh**-exponent - read**-exponent)
    return (
        f"In plain training {read / text:.2g} epochs are worth {fresh / read:.0%} of as much fresh "
        f"text, {lost:.3f} nats worse (Muennighoff et al., arXiv 2305.16264)."
    )


def _brings(run: PlannedRun) -> list[str]:
    gain, text = run.gain, run.setting.text
    said = [f"At equal FLOPs: {_shown(gain)}."]
    if run.own and run.setting == run.first:
        return [*said, "The interval is of the mean over seeds, of this question alone."]
    if gain.nats is not None and gain.low is not None and gain.high is not None:
        times, least, most = (_longer(one, run.tokens) for one in (gain.nats, gain.low, gain.high))
        said.append(
            f"Same loss in 1/{times} of the steps [1/{least}, 1/{most}] (Chinchilla's data term, "
            "arXiv 2404.10102). Published: 1/2.1 to 1/2.6 at 270M, 1/1.8 at 3B, 1/2.5 at 10B-A1B."
        )
    if text > 1:
        less = _data_term(run.tokens) - _data_term(text * run.tokens) - (gain.nats or 0.0)
        lost = "" if gain.nats is None else f"{signed(-less)} (the same term); "
        said.append(
            f"Against a baseline that reads as much text, in {text:.2g} times the steps: {lost}"
            "−0.036 at 3B with s = 6, r = 0.3 (Table 1). Superposition buys compute with text."
        )
    return said


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


def _costs(
    run: PlannedRun,
    flops: float,
    hours: tuple[float, float] | None,
    source: str,
    gpus: int | None,
    price: float | None,
) -> list[str]:
    raw = run.setting.text * run.tokens
    size = memory_size(raw * _TOKEN_BYTES).replace(".0 GB", " GB")
    said = [
        f"Text: {big(raw)} raw tokens (what is read), {size} at "
        f"{_TOKEN_BYTES} bytes a token; the baseline reads {big(run.tokens)}. Latent tokens "
        f"(positions computed): {big(run.tokens)} in both arms."
    ]
    if hours is None:
        return [*said, f"Compute: {flops:.2g} FLOPs in either arm ({source})."]

    def spent(share: float) -> str:
        words = f"{_range(hours, share)} GPU-hours"
        if gpus:
            ends = dict.fromkeys(duration(3600 * share * end / gpus) for end in hours)
            words += f", {'–'.join(ends)} on {gpus}"
        return words + (f", {_range(hours, share * price)} at {price:g} an hour" if price else "")

    said.append(f"Compute of either arm: {spent(1.0)} ({flops:.2g} FLOPs; {source}).")
    if run.gain.low is not None and run.gain.low > 0 and not run.own:
        share = 1 - 1 / float(_longer(run.gain.nats or 0.0, run.tokens))
        said.append(f"Saved where the baseline's loss is enough: {share:.0%}, {spent(share)}.")
    return said


def _against(run: PlannedRun) -> list[str]:
    batch = next(row for row in published.evidence()["own"] if row["arm"] == BETTER_BATCH)
    return [
        f"A better batch alone gained {signed(batch['gain'])} at 0.23M weights, and superposition "
        "is not shown to beat it (docs/findings.md). Tune the baseline's batch first.",
        "Published cells are training losses of one seed; learning rate and size changed together; "
        "at 3B Table 1 and Figure 3a disagree.",
        "Variants disagree: here output only did best and large s lost, in the paper both sides "
        "and s = 7 did best; at 1.1M weights the plain method lost 0.012. Why is not known.",
    ]


def _for_less(run: PlannedRun) -> list[str]:
    law, small = published_law(), bool(run.own) or run.size < 1e7
    down = 1 if small else _PILOT
    noise, source = pair_deviation(law), "scatter of published cells about the law"
    if small:
        own = [row for row in published.evidence()["own"] if row["arm"] in (PLAIN, OUTPUT_ONLY)]
        noise = max(row["deviation"] for row in own if row["seeds"] > 8)
        source = "our second campaign"
    gain = abs(run.gain.nats or 2 * noise)
    counts = range(2, _MOST_SEEDS + 1)
    shown = [(n, (smallest_detectable(n) or math.inf) * noise) for n in counts]
    seeds, least = next((one for one in shown if one[1] <= gain), shown[-1])
    where = f"{big(run.size / down)} × {big(run.tokens / down)} tokens"
    keys = f"--set superposition.bag_size={run.setting.bag_size}"
    keys += f" --set superposition.step_ratio={run.setting.step_ratio:g}"
    keys += " --set superposition.mode=output_only" * run.setting.output_only
    train = "tst-study train run.toml --set seed=$seed --set name"
    return [
        f"{seeds} pairs at {where}, {2 * seeds / down**2:.2g} times one run's FLOPs, show a gain "
        f"of {least:.3f} nats in 80% of cases (a pair's difference deviates by {noise:.4f}: "
        f"{source}; yours may differ). They settle it at that size only.",
        f"for seed in {' '.join(map(str, range(seeds)))}; do",
        f"{train}=superposed-seed$seed {keys}",
        f"{train}=baseline-seed$seed --set 'superposition={{}}'; done",
        "In your own trainer: ten lines (docs/in_your_trainer.md), then `tst-study import`.",
    ]


def _data_term(tokens: float) -> float:
    return float(CHINCHILLA.terms(0.0, math.log(tokens))[2])


def _longer(gain: float, tokens: float) -> str:
    """How many times the steps a baseline needs to gain as much, by Chinchilla's data term."""
    left = 1 - gain / _data_term(tokens)
    return f"{left ** (-1 / CHINCHILLA.beta):.2g}" if left > 0 else "∞"


def _range(ends: tuple[float, float], times: float) -> str:
    found = [f"{times * end:,.0f}" if times * end >= 100 else f"{times * end:.2g}" for end in ends]
    return "–".join(dict.fromkeys(found))
