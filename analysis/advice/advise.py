"""The answer of `tst-study advise`: whether to superpose a planned run, how, and what to expect of
it. This module decides what is said; `screen.jinja` has the words."""

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import Any

from jinja2 import Environment, StrictUndefined

from tst_study.analysis import published
from tst_study.analysis.advice.costs import (
    LENGTH,
    Plan,
    flops_of,
    plans,
    rate_in_words,
    same_text_at_3b,
)
from tst_study.analysis.advice.expected_gain import SLIGHT, Gain, nearest_gain, own_gain
from tst_study.analysis.advice.intended_run import (
    EPOCHS,
    LONGER,
    OUTPUT_ONLY,
    REGIMES,
    Choice,
    IntendedRun,
    own_arm,
)
from tst_study.analysis.advice.pilot import (
    BUDGET,
    RATES,
    Pilot,
    measured_in,
    plan_pilot,
    together,
    write_grid,
)
from tst_study.analysis.answer import plain
from tst_study.analysis.fits.law.law_answer import published_beside_law
from tst_study.analysis.fits.law.rows import settings
from tst_study.analysis.fits.law.superposition_law import published_law
from tst_study.analysis.statistics import deviation_at_most
from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.verdict.question import MOST_SEEDS
from tst_study.analysis.wording import signed
from tst_study.config.schema import Config, load, to_dict
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.cost.compute import count_flops, count_parameters
from tst_study.cost.prices import Prices, span
from tst_study.errors import UserError
from tst_study.text import amount, big, fitted, screen_width, wrapped

WIDTH = 100
"""Largest width of a printed line, in columns."""
SCHEMA_VERSION = 1
"""The version of `Advice.data`; it grows whenever a key changes its meaning or goes."""
_SPARE = ("days", "cost", "GPU-hours", "epochs")
"""Columns of the table that a narrow terminal does without."""
Amount = float | str
"""A number, or a text such as `1B`."""


@dataclass(frozen=True)
class Advice:
    """The answer of `advise`, for people (`rows`, `sections`) and for programs (`data`)."""

    run: IntendedRun
    pilot: Pilot
    plans: list[Plan]
    rows: list[list[str]]
    """The table of the baseline and the ways to plan the superposed run, with its head."""
    sections: dict[str, list[str]]
    """Paragraphs by the title of their section. The first section, without a title, has the
    sentence above the table; `Table` has those below it."""
    data: dict[str, Any]
    """The same answer as JSON values: the numbers by name, and the sections under `said`."""
    base: Path
    """The run config that `write_pilot` names as the pilot's base."""
    config: Config | None
    """The same, if it was read."""

    def lines(self) -> list[str]:
        """Return lines for the terminal, wrapped to its width, or to 100 columns if it is wider."""
        width, lines = min(WIDTH, screen_width()), list[str]()
        for title, paragraphs in self.sections.items():
            if title == "Table":
                wide = [i for i, name in enumerate(self.rows[0]) if name.startswith(_SPARE)]
                table, _ = fitted(self.rows, width - 2, range(1, 9), wide)
                lines += [f"  {line}" for line in table]
            elif title:
                lines.append(title)
            indent = "  " if title else ""
            # Spaces that do not break keep `s = 6` on one line.
            whole = (indent + text.replace(" = ", "\u00a0=\u00a0") for text in paragraphs)
            lines += (line.replace("\u00a0", " ") for line in wrapped(whole, width))
        return lines

    def _repr_html_(self) -> str:
        """Show in a notebook what the command shows, and the picture."""
        return f"<pre>{escape(chr(10).join(self.lines()))}</pre>{self.picture()}"

    def write_pilot(self, path: str | Path) -> None:
        """Write the pilot as a grid file for `tst-study submit`, with its stop rule above it.

        Raises `UserError` if the file exists, or is no `.toml`, which `submit` needs."""
        if Path(path).exists() or Path(path).suffix != ".toml":
            raise UserError(f"--write {path}: it exists or is no .toml; name another file")
        said = [self.sections[""][0], *self.sections["How to find out"][:-1]]
        rule = [line for part in said for line in wrap(part, 90, break_on_hyphens=False)]
        write_grid(Path(path), self.pilot, self.base, self.config, rule)

    def picture(self) -> str:
        """Return an SVG image of the table: how far below the baseline's the loss of each plan
        ends, over the share of the baseline's FLOPs; an empty text if no loss is known."""
        from matplotlib.figure import Figure

        if not any(plan.loss for plan in self.plans):
            return ""
        figure = Figure(figsize=(6, 2.4), layout="constrained")
        axes = figure.subplots()
        axes.axhline(0, color="0.6", linewidth=0.8)
        axes.plot([100], [0], "s", color="0.4", label="baseline")
        for plan in self.plans:
            if plan.share and plan.loss:
                loss, best, worst = plan.loss
                x, error = [100 * plan.share], [[worst - loss], [loss - best]]
                axes.errorbar(x, [-loss], error, fmt="o", capsize=3, label=plan.name)
        axes.set(xlabel="steps (% of the baseline's)", ylabel="gain (nats)")
        axes.set_title(f"{self.run.title}, {self.run.setting}", fontsize=9)
        axes.legend(fontsize=8, frameon=False)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg")
        text = drawn.getvalue()
        return text[text.index("<svg") :]


def advise(
    params: Amount | None = None,
    tokens: Amount | None = None,
    *,
    config: str | Path | None = None,
    active: Amount | None = None,
    text: Amount | None = None,
    sequence_length: Amount | None = None,
    gpus: Amount | None = None,
    device: str | None = None,
    mfu: float | None = None,
    price: float | None = None,
    currency: str = "",
    pilot_budget: float | None = None,
    deadline: float | None = None,
    runs: Sequence[str | Path] = (),
) -> Advice:
    """Say whether to superpose a planned run.

    Numbers may be given as people write them: `"1B"`. `params`: parameters of the model. `active`:
    parameters that one token uses, for a mixture of experts; all of them by default. `tokens`: the
    tokens that a baseline reads. `sequence_length`: in positions, 2,048 by default. `config`: a
    `run.toml`, which has all these. `text`: tokens of text that are available; without limit by
    default. `device` (such as `H100`), `gpus` and `price` (of a GPU-hour, with the label
    `currency`): needed for hours and costs only. `mfu`: a measured one, in place of the published
    ones. `pilot_budget`: the share of the run's cost that the pilot may cost, 0.01 by default; or
    `deadline`: the days that it may take on the GPUs. `runs`: folders or archives of the lab's own
    pilots, which are taken as evidence.

    Raises `UserError` for a wrong config, for a number that is not finite and above 0, for more
    active parameters than parameters, for `gpus`, `price` or `mfu` without `device`, for a device
    that `cost.devices` does not list, for a deadline without hours, and for runs that `measured_in`
    refuses.
    """
    given: dict[str, Any] = {"params": params, "tokens": tokens, "active": active}
    given["sequence-length"] = sequence_length
    described = any(value is not None for value in given.values())
    if (config is None) == (params is None or tokens is None) or (config and described):
        raise UserError("advise: give --params and --tokens, such as 1B and 100B, or --config")
    plan = load(config) if config else None
    if plan:
        count = count_parameters(plan.model)
        given |= {"params": count.total, "active": count.active}
        given["tokens"] = plan.schedule.last_step * plan.batch.positions
        given["sequence-length"] = plan.batch.sequence_length
    given |= {"text": text, "gpus": gpus, "price": price, "mfu": mfu}
    given |= {"pilot-budget": pilot_budget, "deadline": deadline}
    numbers = _checked(device, given)
    return _Screen(numbers, device, currency, runs, plan).advice(Path(config or "run.toml"))


def _checked(device: str | None, given: dict[str, Any]) -> dict[str, float]:
    numbers = {}
    for name, value in ((name, value) for name, value in given.items() if value is not None):
        number = amount(value, f"--{name}") if isinstance(value, str) else float(value)
        if not 0 < number < math.inf:
            raise UserError(f"--{name} {value!r}: give a number above 0")
        numbers[name] = number
    if numbers.get("active", 0) > numbers["params"]:
        more = big(numbers["active"]), big(numbers["params"])
        raise UserError("--active {}: more than the {} of --params".format(*more))
    if device is None and numbers.keys() & {"gpus", "price", "mfu"}:
        raise UserError("--gpus, --price and --mfu: name the --device, too, such as H100")
    if numbers.get("mfu", 0) > 1:
        raise UserError(f"--mfu {given['mfu']}: give a share of the peak, such as 0.4")
    if "deadline" in numbers and not (device and "gpus" in numbers):
        raise UserError("--deadline: days on which GPUs? Give --device and --gpus, too")
    return numbers


def _given_setting(config: Config) -> Choice | None:
    """Return the setting that a config asks to be judged; None if it asks for none, or for one of
    which nothing is known but what our campaigns measured."""
    setting, asked = SuperpositionSetting.from_config(to_dict(config)), config.superposition
    if asked.mode == "input_only" or not setting.is_plain_but("mode"):
        return None
    ratio = asked.step_ratio or setting.step_ratio
    return Choice(asked.bag_size, ratio, asked.mode == "output_only")


class _Screen:
    """Decides what an answer says, and computes the numbers in it."""

    def __init__(
        self,
        numbers: dict[str, float],
        device: str | None,
        currency: str,
        runs: Sequence[str | Path],
        config: Config | None,
    ) -> None:
        params, text = numbers["params"], numbers.get("text", math.inf)
        chosen = _given_setting(config) if config else None
        run = IntendedRun(params, numbers.get("active", params), numbers["tokens"], text, chosen)
        self.run, self.numbers, self.currency, self.config = run, numbers, currency, config
        self.length = int(numbers.get("sequence-length", LENGTH))
        self.flops = count_flops(config).total if config else flops_of(run, self.length)
        self.prices = Prices(device, numbers.get("mfu"), numbers.get("price"))
        self.rate = rate_in_words(self.prices, experts=run.mixture)
        self.measured = measured_in(runs, run) if runs else []
        self.gain, self.weights = together(run, self.measured)
        budget = numbers.get("pilot-budget", BUDGET)
        if "deadline" in numbers:
            if not (hours := self.hours(self.flops)):
                raise UserError(f"--deadline: {self.rate}")
            budget = 24 * numbers["deadline"] * numbers["gpus"] / hours[1]
        last = self.measured[-1] if self.measured else None
        deviation = deviation_at_most(last.deviation, last.seeds - 1) if last else None
        self.pilot = plan_pilot(run, self.length, budget, config, deviation)
        self.plans = plans(run, lambda run: together(run, self.measured)[0])

    def hours(self, flops: float) -> list[float]:
        """Return the least and the most GPU-hours; an empty list if they are not known."""
        return self.prices.gpu_hours(flops, experts=self.run.mixture) or []

    def advice(self, base: Path) -> Advice:
        words = self._words()

        def say(names: Iterator[str]) -> list[str]:
            return [getattr(words, name)() for name in names]

        rungs = self.pilot.rungs if self.pilot.is_smaller else ()
        decided = self.measured[-1].decision if self.measured else self.run.word
        what = (
            "If you try it all the same"
            if decided in ("No", "Not shown", "stop", "slow")
            else "What to run"
        )
        sections = {
            "": [words.title()],
            "Table": say(self._below_table()),
            "Verdict": say(self._verdict()),
            what: say(self._what_to_run()),
            "What speaks against it": [words.tune(), words.one_seed()],
            "Others near this run": [words.other(row) for row in self._others()],
            "How to find out": [
                words.smaller_pilot() if self.pilot.is_smaller else words.pilot_itself(),
                *map(words.rung, rungs),
                words.rule_of_pilot(),
                words.write(),
            ],
        }
        sections = {title: said for title, said in sections.items() if said}
        parts = self.run, self.pilot, self.plans, self._rows(), sections, self._data(sections)
        return Advice(*parts, base, self.config)

    def _rows(self) -> list[list[str]]:
        """Return the head and the rows of the table, first that of the baseline. A column is left
        out if no cell of it is known; two plans that are one run share a row."""
        gpus, price = self.numbers.get("gpus"), self.numbers.get("price")
        head = ["", "steps", "reads", "epochs", "GPU-hours", f"days on {gpus or 0:.0f}"]
        rows = [[*head, f"cost {self.currency}".strip(), "gain in nats [95%]"]]
        loss, flops, text = self.plans
        planned = [Plan("baseline", 1.0, self.run.tokens)]
        planned += [loss] if loss.share != 1 else []
        one_run = [replace(flops, name="same FLOPs, text")]
        planned += one_run if self.run.setting.output_only else [flops, text]
        for plan in planned:
            share, reads = plan.share or 0.0, plan.reads or 0.0
            hours = self.hours(share * self.flops) if share else []
            steps = f"{100 * share:.0f}%" if share else ""
            if self.config and share:
                steps = f"{share * self.config.schedule.last_step:,.0f} ({steps})"
            cells = [plan.name, steps, big(reads) if reads else ""]
            cells.append(f"{reads / self.run.text:.3g}" if reads / self.run.text else "")
            for factor in (1.0, gpus and 1 / 24 / gpus, price):
                cells.append(_span([end * factor for end in hours]) if factor else "")
            rows.append([*cells, _nats(plan.gain) if plan.name != "baseline" else ""])
        kept = [i for i in range(len(rows[0])) if i == 0 or any(row[i] for row in rows[1:])]
        return [[row[i] or "–" * (i > 0) for i in kept] for row in [rows[0], *rows[1:]]]

    def _below_table(self) -> Iterator[str]:
        yield "known_rate" if self.hours(self.flops) else "unknown_rate"
        if self.plans[0].share and self.run.setting.text > 1:
            yield "same_loss"

    def _verdict(self) -> Iterator[str]:
        run, regime = self.run, self.run.regime
        gains = (run.gain.low or 0.0) > 0
        if self.measured:
            yield self.measured[-1].decision
            yield "weights"
        elif regime.startswith("ours"):
            yield regime.replace(",", "").replace(" ", "_")
            yield "evidence_ours"
        elif regime in ("nobody", "others", "too little text") or (regime == "shorter" and gains):
            yield regime.replace(" ", "_")
        else:
            yield run.word.lower() if gains else "includes_zero"
            yield "evidence"
            if not run.mixture and regime != "published":
                yield "rule"

    def _what_to_run(self) -> Iterator[str]:
        run = self.run
        yield "what"
        usual = run.setting == run.usual and not run.mixture
        if usual and run.raw <= run.text and run.gain.nats is not None:
            yield "alike"
        if run.text < run.first.text * run.tokens and not run.first.output_only:
            yield "repeated"
        elif not run.is_ours and not run.setting.output_only:
            yield "output_only"

    def _others(self) -> list[dict[str, Any]]:
        """Return the two nearest in size, best grade first, each with all its gains."""
        found: dict[str, dict[str, Any]] = {}
        for row in self.run.others:
            known = found.setdefault(row["who"], {**row, "gains": []})
            known["gains"].append(f"{row['variant']} {_gain(row['gain'])}")
        return list(found.values())[:2]

    def _far(self) -> str:
        """Say how far the run lies outside the sizes and lengths that the law was fitted to, such
        as `12 times larger and 10 times longer`; an empty text for a run inside them."""
        words = {"params": ("smaller", "larger"), "tokens": ("shorter", "longer")}
        return " and ".join(
            f"{big(float(f'{math.exp(abs(folds)):.2g}'))} times {words[name][folds > 0]}"
            for name, folds in self.run.beyond.items()
            if abs(folds) > SLIGHT
        )

    def _words(self) -> Any:
        """Return the module of sentences in `screen.jinja`, a function for each."""
        run, setting = self.run, self.run.setting
        place = settings(run.size, run.tokens, setting.bag_size, setting.step_ratio)
        output_only = [row for row in published.evidence()["own"] if row["arm"] == OUTPUT_ONLY]
        largest = max(row["params"] for row in output_only)
        sizes = [f"{big(one.run.size)} × {big(one.run.tokens)}" for one in self.measured]
        parts = zip(["known before", *sizes], self.weights, strict=False)
        environment = Environment(undefined=StrictUndefined)
        environment.filters |= {"gain": _gain, "nats": _nats, "own": own_gain, "won": _won}
        environment.filters |= {"big": big, "span": _span}
        text = (Path(__file__).parent / "screen.jinja").read_text(encoding="utf8")
        return environment.from_string(text).make_module(
            {
                **vars(self),
                "hours": self.hours,
                "setting": setting,
                "regime": REGIMES[run.regime],
                "near": run.nearest,
                "law": float(published_law().of_rows(place)[0]),
                "null": float(nearest_gain(place, scaled=True)[0]),
                "far": self._far(),
                "three": next(rows_of(published_beside_law())),
                "same_text_at_3b": same_text_at_3b(),
                "most_epochs": EPOCHS,
                "lost": run.lost(setting),
                "ours": run.ours,
                "plain": own_arm(),
                "larger": [row for row in output_only if row["params"] == largest],
                "large_bag": own_arm("s = 16, r = 0.25"),
                "repeated_text": own_arm(corpus="books-bpe1024-9MB"),
                "tuning": 2 * len(RATES),
                "most_seeds": MOST_SEEDS,
                "slowest": LONGER,
                "shares": ", ".join(f"{name} {100 * weight:.0f}%" for name, weight in parts),
            }
        )

    def _data(self, sections: dict[str, list[str]]) -> dict[str, Any]:
        run, facts = self.run, ("params", "tokens", "text")
        asked = {name: getattr(run, name) for name in facts} | {"active": run.size}
        mfus = self.prices.mfus(experts=run.mixture)
        data: dict[str, Any] = plain(
            {
                "schema_version": SCHEMA_VERSION,
                "said": sections,
                "word": run.word,
                "asked": asked | {"sequence_length": self.length},
                "regime": run.regime,
                "setting": run.setting,
                "gain": self.gain,
                "raw_tokens": run.raw,
                "flops": self.flops,
                "gpu_hours": self.hours(self.flops) or None,
                "mfu_source": mfus.source if mfus else None,
                "plans": self.plans,
                "others": [{key: row[key] for key in ("grade", "source")} for row in run.others],
                "pilot": self.pilot,
                "measured": [{**vars(one), "decision": one.decision} for one in self.measured],
                "weights": self.weights,
            }
        )
        return data


def _nats(gain: Gain) -> str:
    """Write a gain as `0.075 [0.044, 0.110]`."""
    if gain.nats is None or gain.low is None or gain.high is None:
        return "not known"
    return "{} [{}, {}]".format(*map(_gain, (gain.nats, gain.low, gain.high)))


_gain = partial(signed, plus="")
_span = partial(span, least=999.5)
"""Writes a range of hours or of money, from 1,000 on in thousands or more."""


def _won(gain: Gain) -> str:
    if (gain.low or 0.0) > 0:
        return f"gained {_nats(gain)}"
    return f"{'lost' if (gain.high or 0.0) < 0 else 'showed no gain'}: {_nats(gain)}"
