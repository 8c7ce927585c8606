"""Computes the cases of `cases.json` in float64 with numpy, position by position and target by
target, as the paper's text says it (section 3). It shares no code with the losses of this package,
which are checked against it.

    python -m tests.conformance.generate > answered.json

What a case gives stands in `cases.json`, and this computes all answers anew: those of the right
`Reading`, of normalisations that are right, too, and of the usual mistakes. A new case is what it
gives, appended there, and a further normalisation or mistake only adds answers; a change of what a
case gives, or calls right, needs another `cases_version`.
"""

import json
import math
from collections import Counter
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from tst_study.conformance.judging import CASES, train

IGNORE = -100


@dataclass(frozen=True)
class Reading:
    """One way to understand the method; by default the right one."""

    bag: str = "mean"
    """What a position reads: the `mean` of the tokens of its document, their `sum`, or a mean
    `across` documents or of `strided` tokens (`reshape(B, s, L)`); the mean `with padding`, or with
    padding as vectors of `zeros`."""
    empty: str = "mean"
    """What a bag of padding alone reads: the `mean` of its vectors, or `zeros`."""
    whose: int = -1
    """The token whose document a bag of several takes: its last (-1) or first (0) real one."""
    begins: str = "next bag"
    """Where its targets begin: at the `next bag`, the `same bag` (of which the `same labels` lack
    the first token), the next `token`, or one bag (`second bag`) or `one token` too far."""
    targets: str = "bag"
    """The whole `bag`, its `first` token alone, a bag `across` documents or a `strided` one; or one
    target for each position from the `flat` row of all bags."""
    mean: str = "offsets"
    """Over the valid targets at each offset, then over offsets; over those of each bag, then over
    `bags`; over all `targets` together; or over all with `ignored` ones, as zeros."""
    drops_last: bool = False
    """Whether the last bag of a row has no target."""
    power: int = 0
    """The loss is multiplied by s to this power."""


NORMALISATIONS: dict[str, dict[str, Any]] = {
    "the mean over all targets": {"mean": "targets"},
    "the mean of each bag's mean": {"mean": "bags"},
    "the last bag dropped": {"drops_last": True},
    "the last bag dropped and the mean over all targets": {"mean": "targets", "drops_last": True},
    "the last bag dropped and the mean of each bag's mean": {"mean": "bags", "drops_last": True},
}
NORMALISATIONS |= {
    "a bag of padding alone as zeros" + words: {**changes, "empty": "zeros"}
    for words, changes in [("", {}), *((f" and {w}", c) for w, c in NORMALISATIONS.items())]
}
MISTAKES = {
    "divided by s twice": [Reading(power=-1)],
    "summed over s": [Reading(power=1)],
    "the bag itself as target": [Reading(begins="same bag"), Reading(begins="same labels")],
    "targets one token later instead of one bag": [Reading(begins="token")],
    "off by a bag": [Reading(begins="second bag")],
    "first token only": [Reading(targets="first")],
    "flat labels cut to L": [Reading(targets="flat")],
    "embeddings summed": [Reading(bag="sum")],
    "padding counted": [Reading(bag="with padding"), Reading(bag="zeros"), Reading(mean="ignored")],
    "across documents": [
        Reading(bag="across", targets="across"),
        Reading(targets="across"),
        Reading(bag="across"),
    ],
    "targets one token off": [Reading(begins="one token")],
    "strided bags": [
        Reading(bag="strided"),
        Reading(targets="strided"),
        Reading(bag="strided", targets="strided"),
        Reading(bag="strided", targets="strided", begins="token"),
    ],
    "the first token's document": [Reading(whose=0)],
}
OF_PADDING = ("with padding", "zeros")
ANSWERS = "right", "normalisations", "mistakes"
Case = dict[str, Any]


def bags(case: Case, reading: Reading) -> list[list[tuple[list[int], float, list[int]]]]:
    """Return, for each row and position, the tokens that it reads, the number by which their sum is
    divided, and its targets in their order, `IGNORE` where there is none."""
    size, mode = case["bag_size"], case["mode"]
    stride, rows = 1 if mode == "output_only" else size, []
    ahead = {"next bag": stride, "second bag": stride + size, "one token": stride + 1, "token": 1}
    ahead |= {"same bag": 0, "same labels": 0}
    only_one = mode == "input_only" or reading.targets in ("first", "flat")
    for b, (ids, labels) in enumerate(zip(case["ids"], case["labels"], strict=True)):
        document = case["documents"][b] if "documents" in case else [0] * len(ids)
        padding = case["padding"][b] if "padding" in case else [False] * len(ids)
        row, last = [], len(ids) // stride - 1
        for k in range(last + 1):
            read = range(k * stride, (k + 1) * stride)
            bag = range(k, len(ids), last + 1) if reading.bag == "strided" else read
            real = [j for j in bag if not padding[j]] or list(bag)
            own = document[real[reading.whose]]
            member = [j for j in real if reading.bag == "across" or document[j] == own]
            member = list(read) if reading.bag == "with padding" else member
            begin = read.start + ahead[reading.begins]
            begin -= read.start - k if reading.targets in ("flat", "strided") else 0
            step = last + 1 if reading.targets == "strided" else 1
            targets = []
            for i in range(1 if only_one else size):
                j = begin + i * step  # raw token j is label j - 1
                before = ids[0] if reading.begins == "same bag" else IGNORE
                target = IGNORE if j > len(ids) else labels[j - 1] if j else before
                crosses = j < len(ids) and document[j] != own and reading.targets != "across"
                targets.append(IGNORE if crosses or (reading.drops_last and k == last) else target)
            parts = {"sum": 1, "zeros": stride}.get(reading.bag, len(member))
            if reading.empty == "zeros" and all(padding[j] for j in bag):
                parts = math.inf  # which makes zeros of the vectors and of their gradients
            row.append(([ids[j] for j in member], parts, targets))
        rows.append(row)
    return rows


def evaluate(case: Case, table: np.ndarray, head: np.ndarray, reading: Reading) -> Case:
    """Return loss, gradients, bag embeddings and targets of a case in one reading."""
    rows = bags(case, reading)
    every = [position for row in rows for position in row]
    slots = Counter(i for *_, targets in every for i in range(len(targets)))
    valid = Counter(i for *_, targets in every for i, y in enumerate(targets) if y != IGNORE)
    counted = slots if reading.mean == "ignored" else valid
    weights = case.get("weights", [1.0] * case["bag_size"])
    if reading.mean == "offsets":
        total = sum(weights[i] for i in valid)
        shares = {i: weights[i] / total / valid[i] for i in valid}
    else:
        total = sum(weights[i] * count for i, count in counted.items())
        shares = {i: weights[i] / total for i in valid}
    kept = sum(any(y != IGNORE for y in targets) for *_, targets in every)
    loss, grad_table, grad_head = 0.0, np.zeros_like(table), np.zeros_like(head)
    for tokens, parts, targets in every:
        x = sum(table[token] for token in tokens) / parts
        logits = x @ head
        log_normalizer = np.log(np.exp(logits).sum())
        grad_logits = np.zeros_like(logits)
        if reading.mean == "bags":
            own = {i: weights[i] for i, y in enumerate(targets) if y != IGNORE}
            shares = {i: weight / sum(own.values()) / kept for i, weight in own.items()}
        for i, target in enumerate(targets):
            if target != IGNORE:
                share = shares[i] * float(case["bag_size"]) ** reading.power
                loss += share * (log_normalizer - logits[target])
                grad_logits += share * np.exp(logits - log_normalizer)
                grad_logits[target] -= share
        grad_head += np.outer(x, grad_logits)
        for token in tokens:
            grad_table[token] += head @ grad_logits / parts
    embedded = [[sum(table[t] for t in tokens) / parts for tokens, parts, _ in row] for row in rows]
    return {
        "loss": loss,
        "grad_embedding": grad_table,
        "grad_head": grad_head,
        "bag_embedding": np.array(embedded),
        "targets": [[targets for *_, targets in row] for row in rows],
    }


def answers(case: Case, table: np.ndarray, head: np.ndarray) -> Case:
    """Return what is `right` in a case, in which `normalisations` it is right, too, and what the
    usual `mistakes` print. What prints the same as something before it is left out."""
    known: list[np.ndarray] = []
    key = "losses" if "batches" in case else "loss"

    def new(reading: Reading, everywhere: bool = False) -> Case | None:
        def step(batch: Case, table: np.ndarray, head: np.ndarray) -> Case:
            meant = everywhere or batch["bag_size"] > 1
            return evaluate(batch, table, head, reading if meant else Reading())

        if "batches" in case:
            found = {"losses": train(case, table, head, step)}
        else:
            found = evaluate(case, table, head, reading)
        printed = np.array(found[key])
        nearest = min((np.abs(printed - each).max() for each in known), default=1.0)
        known.append(printed)
        assert nearest < 1e-9 or nearest > 5e-5, f"{reading}: too close to another reading"
        return found if nearest > 5e-5 else None

    right = new(Reading())
    assert right is not None
    if "batches" in case:
        read = [sum(len(row) for row in batch["ids"]) for batch in case["batches"]]
        first = case["superposed_steps"]
        right |= {"superposed_steps": first, "tokens": [sum(read[:first]), sum(read[first:])]}
    normalisations: dict[str, Case] = {}
    for (words, changes), everywhere in product(NORMALISATIONS.items(), (False, True)):
        if found := new(replace(Reading(), **changes), everywhere):
            same = [k for k in found if np.array_equal(found[k], right[k])]
            kept = {k: v for k, v in found.items() if k not in (*same, "targets")}
            normalisations[words + ", in both phases" * everywhere] = kept
    mistakes: dict[str, list[Any]] = {}
    for words, readings in MISTAKES.items():
        variants = product((False, True), readings, ({}, *NORMALISATIONS.values()))
        for everywhere, reading, changes in variants:
            of_padding = reading.bag in OF_PADDING and "padding" not in case
            if of_padding or (changes.keys() - {"empty"} and reading.mean == "ignored"):
                continue
            if found := new(replace(reading, **changes), everywhere):
                mistakes.setdefault(words, []).append(found[key])
    return dict(zip(ANSWERS, (right, normalisations, mistakes), strict=True))


def generate() -> Case:
    """Return the content of `cases.json` with all answers computed anew."""
    file = json.loads(CASES.read_text("utf8"))
    table, head = np.array(file["embedding"]), np.array(file["head"])
    for name, case in file["cases"].items():
        given = {key: value for key, value in case.items() if key not in ANSWERS}
        file["cases"][name] = given | answers(given, table, head)
    found: Case = rounded(file)
    return found


def rounded(value: Any) -> Any:
    """Return a value as JSON has it, with numbers of 13 digits."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [rounded(each) for each in value]
    return float(f"{value:.13g}") if isinstance(value, float) else value


if __name__ == "__main__":
    print(json.dumps(generate(), separators=(",", ":")))
