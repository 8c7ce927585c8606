"""Computes the cases of `cases.json` in float64 with numpy, position by position and target by
target, as the paper's text says it (section 3). It shares no code with the losses of this package,
which are checked against it.

    python -m tst_study.conformance.generate > tst_study/conformance/cases.json

Each case is computed in its right `Reading`, in normalisations that are right, too, and in the
usual mistakes. Cases are only appended to; a change of what one says needs another `CASES_VERSION`.
They are in the public domain (CC0-1.0).
"""

import json
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

CASES_VERSION = 1
WORDS, WIDTH, IGNORE = 11, 4, -100
LEARNING_RATE = 0.5  # of the plain gradient descent in the case `switch`


@dataclass(frozen=True)
class Reading:
    """One way to understand the method; by default the right one."""

    bag: str = "mean"
    """What a position reads: the `mean` of the tokens of its document, their `sum`, or a mean
    `across` documents; the mean `with padding`, or with padding as vectors of `zeros`."""
    begins: str = "next bag"
    """Where its targets begin: at the `next bag`, the `same bag` (of which the `same labels` lack
    the first token), the next `token`, or one bag too far (`second bag`)."""
    targets: str = "bag"
    """The whole `bag`, its `first` token alone, or a bag `across` documents; or one target for each
    position from the `flat` row of all bags."""
    mean: str = "offsets"
    """Over the valid targets at each offset, then over offsets; over all `targets` together; or
    over all with `ignored` ones, as zeros."""
    drops_last: bool = False
    """Whether the last bag of a row has no target."""
    power: int = 0
    """The loss is multiplied by s to this power."""


NORMALISATIONS: dict[str, dict[str, Any]] = {
    "the mean over all targets": {"mean": "targets"},
    "the last bag dropped": {"drops_last": True},
    "the last bag dropped and the mean over all targets": {"mean": "targets", "drops_last": True},
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
}
OF_PADDING = ("with padding", "zeros")
Case = dict[str, Any]


def bags(case: Case, reading: Reading) -> list[list[tuple[list[int], int, list[int]]]]:
    """Return, for each row and position, the tokens that it reads, the number by which their sum is
    divided, and its targets in their order, `IGNORE` where there is none."""
    size, mode = case["bag_size"], case["mode"]
    stride, rows = 1 if mode == "output_only" else size, []
    only_one = mode == "input_only" or reading.targets in ("first", "flat")
    for b, (ids, labels) in enumerate(zip(case["ids"], case["labels"], strict=True)):
        document = case["documents"][b] if "documents" in case else [0] * len(ids)
        padding = case["padding"][b] if "padding" in case else [False] * len(ids)
        row, last = [], len(ids) // stride - 1
        for k in range(last + 1):
            read = range(k * stride, (k + 1) * stride)
            real = [j for j in read if not padding[j]] or list(read)
            own = document[real[-1]]
            member = [j for j in real if reading.bag == "across" or document[j] == own]
            member = list(read) if reading.bag == "with padding" else member
            begin = {
                "next bag": read.stop,
                "same bag": read.start,
                "same labels": read.start,
                "token": read.start + 1,
                "second bag": read.stop + size,
            }[reading.begins]
            begin = stride + k if reading.targets == "flat" else begin
            targets = []
            for j in range(begin, begin + (1 if only_one else size)):  # raw token j is label j - 1
                before = ids[0] if reading.begins == "same bag" else IGNORE
                target = IGNORE if j > len(ids) else labels[j - 1] if j else before
                crosses = j < len(ids) and document[j] != own and reading.targets != "across"
                targets.append(IGNORE if crosses or (reading.drops_last and k == last) else target)
            parts = {"sum": 1, "zeros": stride}.get(reading.bag, len(member))
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
    loss, grad_table, grad_head = 0.0, np.zeros_like(table), np.zeros_like(head)
    for tokens, parts, targets in every:
        x = sum(table[token] for token in tokens) / parts
        logits = x @ head
        log_normalizer = np.log(np.exp(logits).sum())
        grad_logits = np.zeros(WORDS)
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


def run(
    case: Case, table: np.ndarray, head: np.ndarray, reading: Reading, everywhere: bool
) -> list[float]:
    """Train both phases by gradient descent; return the loss of each step. The reading is that of
    the superposed steps, and of the others only if it is `everywhere`."""
    losses = []
    for number, step in enumerate(case["batches"]):
        superposed = number < case["superposed_steps"]
        size = case["bag_size"] if superposed else 1
        now = {**step, "bag_size": size, "mode": "full"}
        found = evaluate(now, table, head, reading if superposed or everywhere else Reading())
        table = table - LEARNING_RATE * found["grad_embedding"]
        head = head - LEARNING_RATE * found["grad_head"]
        losses.append(found["loss"])
    return losses


def inputs() -> dict[str, Case]:
    """Return what each case gives, without the answers."""
    random = np.random.default_rng(1)

    def text(bag_size: int, raw: int, mode: str = "full", rows: int = 2, **more: Any) -> Case:
        tokens = random.integers(1, WORDS, (rows, raw + 1)).tolist()
        given = {"ids": [row[:-1] for row in tokens], "labels": [row[1:] for row in tokens]}
        return {"bag_size": bag_size, "mode": mode, **given, **more}

    cases = {
        "plain": text(3, 12),
        "ignored": text(3, 15),
        "one": text(1, 6),
        "repeated": text(4, 16),
        "input_only": text(3, 12, "input_only"),
        "output_only": text(3, 7, "output_only"),
        "weights": text(3, 12, weights=[1.0, 0.5, 0.25]),
        "padding": text(3, 15),
        "documents": text(3, 18, documents=[[0] * 9 + [1] * 9, [0] * 5 + [1] * 8 + [2] * 5]),
        "documents_output_only": text(
            3, 9, "output_only", documents=[[0] * 4 + [1] * 5, [0] * 2 + [1] * 2 + [2] * 5]
        ),
    }
    for b, j in ((0, 4), (0, 5), (0, 9), (1, 2), (1, 3)):
        cases["ignored"]["labels"][b][j] = IGNORE
    for b, bag in ((0, 1), (1, 2)):  # a bag that repeats a token
        row, first = cases["repeated"]["ids"][b], 4 * bag
        row[first + 1] = row[first + 2] = row[first]
        cases["repeated"]["labels"][b][:-1] = row[1:]
    padded = cases["padding"]  # at the end of the first row, at the beginning of the second
    padded["padding"] = [[j >= 10 for j in range(15)], [j < 5 for j in range(15)]]
    for ids, labels, padding in zip(
        *(padded[key] for key in ("ids", "labels", "padding")), strict=True
    ):
        ids[:] = [0 if pad else token for token, pad in zip(ids, padding, strict=True)]
        beyond = [*padding[1:], padding[14]]
        labels[:] = [IGNORE if pad else y for y, pad in zip(labels, beyond, strict=True)]
    for name in ("documents", "documents_output_only"):
        case = cases[name]
        for labels, document in zip(case["labels"], case["documents"], strict=True):
            for j in range(len(labels) - 1):
                labels[j] = labels[j] if document[j] == document[j + 1] else IGNORE
    lengths = [9] * 3 + [3] * 4
    batches = [{key: text(3, n)[key] for key in ("ids", "labels")} for n in lengths]
    for batch in batches:  # the labels must be those of the ids
        for ids, labels in zip(batch["ids"], batch["labels"], strict=True):
            labels[:-1] = ids[1:]
    facts = {"steps": 7, "step_ratio": 0.4, "superposed_steps": 3, "learning_rate": LEARNING_RATE}
    cases["switch"] = {"bag_size": 3, "mode": "full", **facts, "batches": batches}
    return cases


def generate() -> dict[str, Any]:
    """Return what `cases.json` holds."""
    random = np.random.default_rng(1)
    table, head = (random.normal(size=shape).round(3) for shape in ((WORDS, WIDTH), (WIDTH, WORDS)))
    cases = {}
    for name, case in inputs().items():

        def answer(reading: Reading, everywhere: bool = False, case: Case = case) -> Any:
            if "batches" in case:
                return run(case, table, head, reading, everywhere)
            return evaluate(case, table, head, reading)

        known: list[np.ndarray] = []

        def is_new(found: Any, known: list[np.ndarray] = known, name: str = name) -> bool:
            value = np.array(found if isinstance(found, list) else found["loss"])
            gaps = [np.abs(value - each).max() for each in known]
            known.append(value)
            if min(gaps, default=1.0) < 1e-9:
                return False
            assert min(gaps, default=1.0) > 1e-4, f"{name}: two readings are too close"
            return True

        right = answer(Reading())
        is_new(right)
        others = {}
        for words, changes in NORMALISATIONS.items():
            for everywhere in (False, True):
                found = answer(replace(Reading(), **changes), everywhere)
                if is_new(found):
                    others[words + ", in both phases" * everywhere] = found
        mistakes: dict[str, list[Any]] = {}
        plain: dict[str, Any] = {}
        for words, readings in MISTAKES.items():
            variants = [
                replace(reading, **changes)
                for reading in readings
                for changes in (plain, *NORMALISATIONS.values())
                if not (changes and reading.mean == "ignored")
                and (reading.bag not in OF_PADDING or "padding" in case)
            ]
            for everywhere in (False, True):
                for found in (answer(reading, everywhere) for reading in variants):
                    if is_new(found):
                        loss = found if isinstance(found, list) else found["loss"]
                        mistakes.setdefault(words, []).append(loss)
        kept = ("loss", "grad_embedding", "grad_head")
        if "batches" in case:
            read = [sum(len(row) for row in batch["ids"]) for batch in case["batches"]]
            first = case["superposed_steps"]
            tokens = {"tokens": [sum(read[:first]), sum(read[first:])]}
            right = {"losses": right, "superposed_steps": first, **tokens}
            others = {words: {"losses": found} for words, found in others.items()}
        else:
            others = {words: {key: of[key] for key in kept} for words, of in others.items()}
        answers = {"right": right, "normalisations": others, "mistakes": mistakes}
        cases[name] = {**case, **answers}
    shared = {"cases_version": CASES_VERSION, "licence": "CC0-1.0", "embedding": table}
    file: dict[str, Any] = rounded({**shared, "head": head, "cases": cases})
    return file


def rounded(value: Any) -> Any:
    """Return a value as JSON has it, with numbers of 13 digits."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [rounded(each) for each in value]
    return float(f"{value:.13g}") if isinstance(value, float) else value


if __name__ == "__main__":
    print(json.dumps(generate(), separators=(",", ":")))
