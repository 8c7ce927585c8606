"""Judges answers to the cases: right, right in another normalisation, or which mistake it is."""

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from tst_study.errors import UserError, first_line, one_of

OPTIONAL = {"embed": ("padding", "documents"), "loss": ("mode", "weights", "documents")}
"""The parameters beyond the first three that functions of others may have."""
LINES = {
    "mistake": "mistake: {words} ({cases}): {mend}",
    "wrong": "wrong: {cases}: {words}",
    "normalisation": "right up to normalisation: {words} ({cases})",
    "right": "right: {cases}",
}
RETURNED = {
    "embed": (3, "one array of (B, L, d)"),
    "loss": (0, "the loss alone, a scalar; gradients in numpy are judged by judge(answers)"),
}
CASES = Path(__file__).with_name("cases.json")
TOLERANCE = 1e-5
"""Error that float32 is allowed, relative to the largest number of what is right. The readings of a
case are at least twice as far apart."""
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
    "targets one token off": "the labels are shifted by one already: shift them by s − 1 more, not "
    "by s",
    "strided bags": "a bag is s neighbouring tokens: reshape to (B, L, s), not to (B, s, L)",
    "the first token's document": "a bag of several documents belongs to its last token's",
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
    missing is not judged, and the verdict says so.

    Raises UserError for a case or key that does not exist, or an answer that is no number.
    """
    known, found = cases(), {}
    if not isinstance(answers, Mapping) or not answers:
        raise UserError(f"no answers: give an object with some of {', '.join(known)}")
    counts: Counter[str] = Counter()
    for name, answer in answers.items():
        one_of(name, known, "case")
        if not isinstance(answer, Mapping) or not answer:
            raise UserError(f"{name}: give an object with some of {', '.join(_keys(known[name]))}")
        for key in answer:
            one_of(key, _keys(known[name]), "key", f" of {name}")
        found[name] = _judge_case(known[name], {k: _array(name, k, v) for k, v in answer.items()})
        counts.update({key: key in answer for key in _keys(known[name])})
    # With one token in a bag these two are the same, and the other cases say which is meant.
    one_token = ("mistake", "targets one token off")
    if found.get("one") == ("mistake", "off by a bag") and one_token in found.values():
        found["one"] = one_token
    seen = ", ".join(f"{key} in {count}" for key, count in counts.items() if count)
    lines = [f"judged: {len(found)} of {len(known)} cases ({seen})"]
    missing = [key for key, count in counts.items() if not count]
    if other := [name for name in known if name not in found]:
        missing.append(f"the cases {', '.join(other)}")
    return _verdict(found, lines + [f"not judged: {', '.join(missing)}"] * bool(missing))


def judge_file(path: Path) -> Verdict:
    """Judge the answers in a JSON file. Raises UserError as `judge` does, or if it is no JSON."""
    try:
        return judge(json.loads(path.read_text("utf8")))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        # Python's own text of an error of the disk names the path once more.
        problem = error.strerror if isinstance(error, OSError) else first_line(error)
        raise UserError(f"{path}: {problem}: give a JSON file of answers") from None


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
    readings = {("right", ""): right}
    for name, changes in case["normalisations"].items():
        readings["normalisation", name] = {**right, **changes}
    for verdict, reading in readings.items():
        if all(_same(value, reading[each]) for each, value in answer.items()):
            return verdict
    for each, value in sorted(answer.items()):
        if value.shape != np.shape(right[each]):
            return "wrong", f"{each} has the shape {value.shape}, not {np.shape(right[each])}"
        if each in ("superposed_steps", "tokens") and not _same(value, right[each]):
            return "wrong", f"{each}: {value.astype(int).tolist()}, not {right[each]}"
    loss = answer.get(key, np.asarray(right[key]))
    for name, losses in case["mistakes"].items():
        if any(_same(loss, each) for each in losses):
            return "mistake", name
    expected = next((each for each in readings.values() if _same(loss, each[key])), None)
    bags, meant = answer.get("bag_embedding"), [expected] if expected else readings.values()
    if bags is not None and not any(_same(bags, each["bag_embedding"]) for each in meant):
        if _same(bags, case["bag_size"] * np.asarray(right["bag_embedding"])):
            return "mistake", "embeddings summed"
        return "wrong", "bag_embedding is not the mean of each bag's embeddings"
    factors = []
    for gradient in [each for each in ("grad_embedding", "grad_head") if each in answer]:
        value, true = answer[gradient], np.asarray((expected or right)[gradient])
        factor = float((value * true).sum() / (true * true).sum())
        factors.append(factor if _same(value, factor * true) else math.nan)
        if expected and not _same(value, true):
            times = f"{factor:.6g} times what is right"
            how = "another gradient" if math.isnan(factors[-1]) else times
            return "wrong", f"the loss is right, but {gradient} is {how}"
    factor = np.ravel(loss / np.asarray(right[key]))[0]
    if factors and np.allclose(factors, factor, rtol=TOLERANCE):
        return "wrong", f"all is {factor:.6g} times what is right, which changes each step"
    shown = f"{np.ravel(loss)[0]:.6f}, not {np.ravel(right[key])[0]:.6f}"
    return "wrong", f"{key} {shown}: none of the usual mistakes"


def _same(value: Any, expected: Any) -> bool:
    value, expected = np.asarray(value, dtype=float), np.asarray(expected, dtype=float)
    if value.shape != expected.shape:
        return False
    error = np.abs(value - expected).max()
    return bool(error <= TOLERANCE * np.abs(expected).max())


def _verdict(found: Mapping[str, tuple[str, str]], judged: list[str]) -> Verdict:
    lines = []
    for kind, line in LINES.items():
        for words in dict.fromkeys(words for its, words in found.values() if its == kind):
            names = ", ".join(name for name, its in found.items() if its == (kind, words))
            lines.append(line.format(words=words, cases=names, mend=MENDS.get(words)))
    right = all(kind in ("normalisation", "right") for kind, _ in found.values())
    return Verdict(right, (*lines, *judged))


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

    Raises UserError if a function returns something else, such as a loss with its gradients.
    """
    torch = sys.modules.get("torch")
    if array is not None or torch is None:
        return judge(_answers(my_loss, my_embed, array or np.asarray))
    try:
        return judge(_answers(my_loss, my_embed, np.asarray))
    except UserError:
        raise
    except Exception:
        return judge(_answers(my_loss, my_embed, torch.as_tensor))


def _returned(function: str, value: Any) -> Any:
    dimensions, words = RETURNED[function]
    shape = getattr(value, "shape", ())
    if isinstance(value, tuple | list) or len(shape) != dimensions:
        what = f"an array of {tuple(shape)}" if len(shape) else f"a {type(value).__name__}"
        raise UserError(f"my_{function} returned {what}: return {words}")
    return value


def _answers(my_loss: Any, my_embed: Any, array: Callable[[Any], Any]) -> dict[str, dict[str, Any]]:
    takes = {"embed": signature(my_embed).parameters, "loss": signature(my_loss).parameters}
    answers: dict[str, dict[str, Any]] = {}

    def step(case: Mapping[str, Any], table: Any, head: Any) -> dict[str, Any]:
        size, output_only = case["bag_size"], case["mode"] == "output_only"
        more = {"mode": case["mode"], "weights": case.get("weights")}
        for key in ("padding", "documents"):
            more[key] = array(np.asarray(case[key])) if key in case else None
        own = {f: {k: more[k] for k in names if k in takes[f]} for f, names in OPTIONAL.items()}
        weights = [array(np.array(each, dtype=float)) for each in (table, head)]
        has_gradients = hasattr(weights[0], "requires_grad_")  # torch's; zero if none arrives
        for each in weights if has_gradients else ():
            each.requires_grad_().grad = each.detach() * 0
        ids, labels = (array(np.asarray(case[key])) for key in ("ids", "labels"))
        hidden = my_embed(weights[0], ids, 1 if output_only else size, **own["embed"])
        hidden = _returned("embed", hidden)
        loss = _returned("loss", my_loss(hidden @ weights[1], labels, size, **own["loss"]))
        values = {"loss": loss, "bag_embedding": hidden}
        if getattr(loss, "requires_grad", False):
            loss.backward()
        if has_gradients:
            values |= {"grad_embedding": weights[0].grad, "grad_head": weights[1].grad}
        return {key: np.array(getattr(v, "detach", lambda v=v: v)()) for key, v in values.items()}

    for name, case in cases().items():
        special = {key for key in case if key != "mode" or case[key] != "full"}
        if any(set(OPTIONAL[f]) & special - set(takes[f]) for f in OPTIONAL):
            continue
        if "batches" not in case:
            answers[name] = step(case, case["embedding"], case["head"])
        elif "grad_head" in answers["plain"]:
            answers[name] = {"losses": train(case, case["embedding"], case["head"], step)}
    return answers


def train(case: Mapping[str, Any], table: Any, head: Any, step: Callable[..., Any]) -> list[Any]:
    """Train both phases by gradient descent and return the loss of each step. `step(case, table,
    head)` returns the loss and the gradients of a case: a batch with its `bag_size` and `mode`."""
    losses = []
    for number, batch in enumerate(case["batches"]):
        size = case["bag_size"] if number < case["superposed_steps"] else 1
        found = step({**batch, "bag_size": size, "mode": "full"}, table, head)
        table = table - case["learning_rate"] * found["grad_embedding"]
        head = head - case["learning_rate"] * found["grad_head"]
        losses.append(found["loss"])
    return losses
