"""Questions that are asked at the command line, of runs that are there already, and so are never
registered: `--arm "both, s=4" --against baseline --where steps=20000`."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from tst_study.analysis.verdict.planned import labelled
from tst_study.analysis.verdict.question import DEFAULT_METHOD, Arm, Method, Question
from tst_study.errors import UserError
from tst_study.text import listed


def asked_now(
    runs: pd.DataFrame,
    questions: Sequence[Question],
    arm: str | None,
    against: str | None,
    where: Sequence[str] = (),
    method: Method | None = None,
    smallest_gain: float | None = None,
) -> tuple[Question, ...]:
    """Return the question whether `arm` beats `against`; without these two, the `questions` of the
    runs, asked again by another method or of another smallest gain.

    An arm is given by its setting, or by part of it that no other setting has (`both, s=4`), or by
    its name in a question of the study. `where`: COLUMN=VALUE, for both arms.

    Raises `UserError` for an arm that is not among the runs, or that fits several settings."""
    if (arm is None) is not (against is None):
        raise UserError("--arm and --against: give both, or neither")
    again: dict[str, Any] = {"registered": None, "registration": None}
    if arm is None or against is None:
        if where or not questions:
            raise UserError("--where, --method, --smallest-gain: name --arm and --against, too")
        again |= {"method": method} if method else {}
        again |= {"smallest_gain": smallest_gain} if smallest_gain else {}
        return tuple(question.model_copy(update=again) for question in questions)
    table = labelled(runs)
    conditions = dict(map(_condition, where))
    named = {one.name: one for asked in questions for one in (asked.arm, asked.against)}
    sides = [
        _arm(option, text, conditions, table, named.values())
        for option, text in (("--arm", arm), ("--against", against))
    ]
    name = f"{sides[0].name} against {sides[1].name}"
    return (
        Question(
            name=", ".join([name, *where]),
            arm=sides[0],
            against=sides[1],
            family="asked now",
            primary=True,
            method=method or DEFAULT_METHOD,
            smallest_gain=smallest_gain,
        ),
    )


def _arm(
    option: str, text: str, where: dict[str, Any], table: pd.DataFrame, named: Iterable[Arm]
) -> Arm:
    labels = sorted(set(Arm(name=text, where=where).runs(table)["setting"]))
    wanted = _words(text)
    known = [(_words(label) | _both(label), label, label) for label in labels]
    fitting = [(own, name, setting) for own, name, setting in known if _fits(wanted, own)]
    exact = [item for item in fitting if wanted == item[0]] or fitting
    if len(exact) == 1:
        return Arm(name=exact[0][1], setting=exact[0][2], where=where)
    if len(exact) > 1:
        found = listed([name for _, name, _ in exact], 6)
        raise UserError(f"{option} {text!r}: fits {found}; say which")
    for one in named:
        if wanted == _words(one.name):
            return one.model_copy(update={"where": {**one.where, **where}})
    there = listed(labels, 6) or "no setting there"
    raise UserError(f"{option} {text!r}: no such arm among the runs; known: {there}")


def _words(text: str) -> set[str]:
    return {part for words in text.lower().split(",") if (part := "".join(words.split()))}


def _both(label: str) -> set[str]:
    """Return the words that a label leaves out: both sides are superposed unless it says which."""
    return {"both"} if "s = " in label and " only" not in label else set()


def _fits(wanted: set[str], own: set[str]) -> bool:
    """Return whether a setting has all wanted words, or words that begin with them."""
    return all(
        word in own or ("=" not in word and any(known.startswith(word) for known in own))
        for word in wanted
    )


def _condition(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--where {text!r}: give COLUMN=VALUE, such as steps=20000")
    value = value.strip()
    try:
        found = json.loads(value.replace("_", "") if value.replace("_", "").isdigit() else value)
    except ValueError:
        return key.strip(), value
    if isinstance(found, list) and "." not in key:
        return key.strip(), tuple(found)
    return key.strip(), found if isinstance(found, int | float | bool) else value
