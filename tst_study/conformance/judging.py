"""Judges answers to the cases: right, right in another normalisation, or which mistake it is."""

import inspect
import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tst_study.errors import UserError, first_line, one_of

OPTIONAL = {"embed": ("padding", "documents"), "loss": ("mode", "weights", "documents")}
"""The parameters beyond the first three that functions of others may have."""
CASES = Path(__file__).with_name("cases.json")
TOLERANCE = 1e-5
"""Relative error that float32 is allowed. The readings of a case are at least ten times further
apart."""
MENDS = {
    "divided by s twice": "the mean over a bag's s targets is the loss: divide by s once",
    "summed over s": "take the mean over the s targets, not their sum",
    "the bag itself as target": "bag k predicts bag k + 1: shift the labels left by s − 1 more",
    "targets one token later instead of one bag": "bag k predicts bag k + 1: shift the next-token "
    "labels left by s − 1 more",
    "off by a bag": "bag k predicts bag k + 1, not k + 2: the labels are shifted already",
    "first token only": "all s tokens of the next bag are targets",
    "flat labels cut to L": "labels of bags are (B, L, s): a loss that takes (B, L) has cut them",
    "embeddings summed": "divide the sum of a bag's embeddings by s",
    "padding counted": "leave padding out of the mean of its bag, and ignored labels out of the "
    "number that the loss is divided by",
    "across documents": "neither a bag nor a target may cross from its document into another",
}


@dataclass(frozen=True)
class Verdict:
    """What answers to the cases show; as text, in a few lines."""

    right: bool
    """Whether everything that was judged is right, in some normalisation."""
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines)


def cases() -> dict[str, Any]:
    """Return the cases by their names. Each has all that an implementation needs, as lists:
    `embedding` (V, d), `head` (d, V), `ids` and `labels` (B, s·L), `bag_size`, `mode`; some have
    `weights`, `padding` (true where a token is padding) or `documents`; and what is `right`."""
    file = json.loads(CASES.read_text("utf8"))
    shared = {key: file[key] for key in ("embedding", "head")}
    return {name: {**shared, **case} for name, case in file["cases"].items()}


def judge(answers: Mapping[str, Mapping[str, Any]]) -> Verdict:
    """Judge answers: `{case: {"loss": …, "grad_embedding": …, "grad_head": …}}`, also
    `bag_embedding`; for the case `switch`, `losses`, `superposed_steps` and `tokens`. What is
    missing is not judged.

    Raises UserError for a case or key that does not exist, or an answer that is no number.
    """
    known, found = cases(), {}
    if not isinstance(answers, Mapping) or not answers:
        raise UserError(f"no answers: give an object with some of {', '.join(known)}")
    for name, answer in answers.items():
        one_of(name, known, "case")
        if not isinstance(answer, Mapping) or not answer:
            raise UserError(f"{name}: give an object with some of {', '.join(_keys(known[name]))}")
        for key in answer:
            one_of(key, _keys(known[name]), "key", f" of {name}")
        found[name] = _judge_case(known[name], {k: _array(name, k, v) for k, v in answer.items()})
    return _verdict(found, [name for name in known if name not in answers])


def judge_file(path: Path) -> Verdict:
    """Judge the answers in a JSON file. Raises UserError as `judge` does, or if it is no JSON."""
    try:
        return judge(json.loads(path.read_text("utf8")))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path}: {first_line(error)}: give a JSON file of answers") from None


def _keys(case: Mapping[str, Any]) -> list[str]:
    return [key for key in case["right"] if key != "targets"]


def _array(name: str, key: str, value: Any) -> np.ndarray:
    try:
        return np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        raise UserError(f"{name}: {key} is not a number or an array of numbers") from None


def _judge_case(case: Mapping[str, Any], answer: Mapping[str, np.ndarray]) -> tuple[str, str]:
    """Return the kind (`right`, `normalisation`, `mistake` or `wrong`) and its words."""
    right, key = case["right"], "losses" if "batches" in case else "loss"
    kind, words, expected = "right", "", right
    for other in sorted(_keys(case)):
        if other in answer and answer[other].shape != np.shape(right[other]):
            shapes = f"{answer[other].shape}, not {np.shape(right[other])}"
            return "wrong", f"{other} has the shape {shapes}"
    for count in ("superposed_steps", "tokens"):
        if count in answer and not np.array_equal(answer[count], right[count]):
            return "wrong", f"{count}: {answer[count].astype(int).tolist()}, not {right[count]}"
    if key in answer and not _same(answer[key], right[key]):
        value = answer[key]
        for name, reading in case["normalisations"].items():
            if _same(value, reading[key]):
                kind, words, expected = "normalisation", name, reading
        for name, losses in case["mistakes"].items():
            if kind == "right" and any(_same(value, loss) for loss in losses):
                return "mistake", name
        if kind == "right":
            factor = np.ravel(value / np.asarray(right[key]))[0]
            if _scaled(answer, right, factor):
                return "wrong", f"all is {factor:.6g} times what is right, which changes each step"
            shown = f"{np.ravel(value)[0]:.6f}, not {np.ravel(right[key])[0]:.6f}"
            return "wrong", f"{key} {shown}: none of the usual mistakes"
    elif "bag_embedding" in answer and not _same(answer["bag_embedding"], right["bag_embedding"]):
        if _same(answer["bag_embedding"], case["bag_size"] * np.asarray(right["bag_embedding"])):
            return "mistake", "embeddings summed"
        return "wrong", "bag_embedding is not the mean of each bag's embeddings"
    for gradient in ("grad_embedding", "grad_head"):
        if gradient in answer and gradient in expected:
            true = np.asarray(expected[gradient])
            if not _same(answer[gradient], true):
                factor = float((answer[gradient] * true).sum() / (true * true).sum())
                how = f"is {factor:.6g} times what is right"
                how = how if _same(answer[gradient], factor * true) else "is another gradient"
                return "wrong", f"the loss is right, but {gradient} {how}"
    return kind, words


def _same(value: Any, expected: Any) -> bool:
    value, expected = np.asarray(value, dtype=float), np.asarray(expected, dtype=float)
    error = np.abs(value - expected).max()
    return bool(error <= TOLERANCE * max(1.0, np.abs(expected).max()))


def _scaled(answer: Mapping[str, np.ndarray], right: Mapping[str, Any], factor: float) -> bool:
    gradients = [key for key in ("grad_embedding", "grad_head") if key in answer]
    scaled = (_same(answer[key], factor * np.asarray(right[key])) for key in gradients)
    return bool(gradients) and math.isfinite(factor) and all(scaled)


def _verdict(found: Mapping[str, tuple[str, str]], missing: list[str]) -> Verdict:
    of_kind = {kind: {n: w for n, (k, w) in found.items() if k == kind} for kind in
               ("mistake", "wrong", "normalisation", "right")}  # fmt: skip
    lines = []
    for words in dict.fromkeys(of_kind["mistake"].values()):
        where = ", ".join(name for name, its in of_kind["mistake"].items() if its == words)
        lines.append(f"mistake: {words} ({where}): {MENDS[words]}")
    lines += [f"wrong: {name}: {words}" for name, words in of_kind["wrong"].items()]
    right = not lines
    for words in dict.fromkeys(of_kind["normalisation"].values()):
        where = ", ".join(name for name, its in of_kind["normalisation"].items() if its == words)
        lines.append(f"right up to normalisation: {words} ({where})")
    if of_kind["right"]:
        lines.append(f"right: {', '.join(of_kind['right'])}")
    if missing:
        lines.append(f"not judged: {', '.join(missing)}")
    return Verdict(right, tuple(lines))


def check(
    my_loss: Callable[..., Any],
    my_embed: Callable[..., Any],
    array: Callable[[Any], Any] | None = None,
) -> Verdict:
    """Judge a loss and a bag embedding by the cases.

    Gradients are judged where arrays have them, as torch's do. A case that needs more than the
    three arguments is judged if the functions have parameters of these names: `mode` and `weights`
    (s numbers) of the loss, `padding` (B, s·L; true for padding) of the embedding, and `documents`
    (B, s·L; ids) of both. These are None where a case has none. Under `output_only`, `my_embed`
    gets s = 1.

    Args:
        my_loss: `my_loss(logits[B, L, V], labels[B, s·L], s)`, a scalar; `labels` are next-token
            labels, −100 where there is none.
        my_embed: `my_embed(table[V, d], ids[B, s·L], s)`, (B, L, d).
        array: makes an array of the functions' framework from numpy's float64 and int64. By default
            they get numpy's arrays, or torch's if these fail and torch is loaded.
    """
    torch = sys.modules.get("torch")
    if array is not None or torch is None:
        return judge(_answers(my_loss, my_embed, array or np.asarray))
    try:
        return judge(_answers(my_loss, my_embed, np.asarray))
    except Exception:
        return judge(_answers(my_loss, my_embed, torch.as_tensor))


def _answers(my_loss: Any, my_embed: Any, array: Callable[[Any], Any]) -> dict[str, dict[str, Any]]:
    functions = {"loss": my_loss, "embed": my_embed}
    takes = {name: inspect.signature(f).parameters for name, f in functions.items()}
    answers: dict[str, dict[str, Any]] = {}

    def step(case: Mapping[str, Any], table: Any, head: Any, size: int) -> dict[str, Any]:
        more = {"mode": case.get("mode", "full"), "weights": case.get("weights")}
        for key in ("padding", "documents"):
            more[key] = array(np.asarray(case[key])) if key in case else None
        of_embed, of_loss = (
            {key: more[key] for key in OPTIONAL[f] if key in takes[f]} for f in ("embed", "loss")
        )
        weights = [array(np.array(each, dtype=float)) for each in (table, head)]
        learns = all(hasattr(each, "requires_grad_") for each in weights)
        if learns:
            weights = [each.requires_grad_() for each in weights]
        read = 1 if case.get("mode") == "output_only" else size
        ids, labels = (array(np.asarray(case[key])) for key in ("ids", "labels"))
        hidden = my_embed(weights[0], ids, read, **of_embed)
        loss = my_loss(hidden @ weights[1], labels, size, **of_loss)
        values = {"loss": loss, "bag_embedding": hidden}
        if learns:
            loss.backward()
            values |= {"grad_embedding": weights[0].grad, "grad_head": weights[1].grad}
        return {key: np.array(getattr(v, "detach", lambda v=v: v)()) for key, v in values.items()}

    for name, case in cases().items():
        special = {key for key in case if key != "mode" or case[key] != "full"}
        if any(set(OPTIONAL[f]) & special - set(takes[f]) for f in OPTIONAL):
            continue
        if "batches" not in case:
            answers[name] = step(case, case["embedding"], case["head"], case["bag_size"])
            continue
        table, head = (np.asarray(case[key]) for key in ("embedding", "head"))
        losses = []
        for number, batch in enumerate(case["batches"]):
            size = case["bag_size"] if number < case["superposed_steps"] else 1
            found = step(batch, table, head, size)
            if "grad_head" not in found:
                break
            table = table - case["learning_rate"] * found["grad_embedding"]
            head = head - case["learning_rate"] * found["grad_head"]
            losses.append(found["loss"])
        else:
            answers[name] = {"losses": losses}
    return answers
