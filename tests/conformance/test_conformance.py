"""The check of other implementations calls right ones right, and each usual mistake by its name."""

import json
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.conformance.generate import MISTAKES, generate
from tst_study.conformance import cases, check, judge
from tst_study.conformance.judging import CASES, MENDS, judge_file
from tst_study.errors import UserError
from tst_study.superposition import Superposition


def test_the_cases_are_what_their_generator_computes():
    def parsed(text: str) -> tuple[Any, list[float]]:
        numbers: list[float] = []
        return json.loads(text, parse_float=lambda digits: numbers.append(float(digits))), numbers

    (found, numbers), (expected, right) = parsed(CASES.read_text()), parsed(json.dumps(generate()))
    assert found == expected
    assert numbers == pytest.approx(right, rel=1e-11, abs=1e-12)
    assert set(MISTAKES) == set(MENDS)


def test_cases_are_only_appended_to():
    """So that answers of others stay right. A change needs another `cases_version`."""
    first = json.loads(CASES.read_text())
    names = [
        "plain", "ignored", "one", "repeated", "input_only", "output_only", "weights", "padding",
        "documents", "documents_output_only", "switch",
    ]  # fmt: skip
    assert list(first["cases"])[: len(names)] == names
    given = [first[key] for key in ("cases_version", "licence", "embedding", "head")]
    for name in names:
        given.append({k: v for k, v in first["cases"][name].items() if not isinstance(v, dict)})
    assert sha256(json.dumps(given).encode()).hexdigest()[:16] == "948245f5f2505e3e"


# --- the package ----------------------------------------------------------------------------------


def method(s: int, mode: str = "full", weights: Any = None) -> Superposition:
    return Superposition(
        s, 1.0, 1, mode=mode, weighting="uniform" if weights is None else weights, positions="any"
    )  # type: ignore[arg-type]


def our_embed(
    table: Tensor, ids: Tensor, s: int, padding: Any = None, documents: Any = None
) -> Any:
    module = nn.Embedding(*table.shape)
    del module.weight
    module.weight = table  # type: ignore[assignment]
    whose = torch.zeros_like(ids) if documents is None else documents
    whose = whose if padding is None else whose.masked_fill(padding, -1)
    return method(s).embed(module, ids, documents=whose)


def our_loss(
    logits: Tensor, labels: Tensor, s: int, mode: str = "full", weights: Any = None,
    documents: Any = None,
) -> Tensor:  # fmt: skip
    return method(s, mode, weights).loss(logits, labels, documents=documents)


def test_the_package_itself_is_right_in_every_case():
    verdict = check(our_loss, our_embed)
    assert verdict.right
    assert verdict.lines == (
        f"right: {', '.join(cases())}",
        "judged: 11 of 11 cases (loss in 10, grad_embedding in 10, grad_head in 10, "
        "bag_embedding in 10, losses in 1)",
        "not judged: superposed_steps, tokens",
    )


def test_float32_is_right_and_a_gradient_beyond_its_rounding_is_not():
    def array(numbers: np.ndarray) -> Tensor:
        return torch.as_tensor(numbers, dtype=torch.float32 if numbers.dtype.kind == "f" else None)

    assert check(our_loss, our_embed, array).right
    right = cases()["plain"]["right"]
    gradient = np.array(right["grad_head"])
    gradient.flat[0] += 5e-5 * np.abs(gradient).max()
    assert not judge({"plain": {"loss": right["loss"], "grad_head": gradient}}).right


# --- somebody else's ------------------------------------------------------------------------------


def embed(table: Any, ids: Any, s: int) -> Any:
    return table[ids].reshape(len(ids), -1, s, table.shape[1]).mean(2)


def mean_loss(
    begin: Callable[[int], int] = lambda s: s,
    drop: int = 0,
    fold: Callable[[Tensor, int], Tensor] = lambda row, s: row.unflatten(1, (-1, s)),
    reduction: str = "mean",
) -> Callable[..., Tensor]:
    """A usual one, over all targets, which begin `begin(s)` tokens after their bag's first."""

    def loss(logits: Tensor, labels: Tensor, s: int) -> Tensor:
        row = F.pad(labels, (1, 2 * s), value=-100)[:, begin(s) :][:, : labels.shape[1]]
        kept = logits.shape[1] - drop
        targets = fold(row, s)[:, :kept]
        rows = logits[:, :kept].unsqueeze(2).expand(-1, -1, targets.shape[2], -1)
        total = F.cross_entropy(rows.flatten(0, 2), targets.flatten(), reduction=reduction)
        return total / targets.numel() if reduction == "sum" else total

    return loss


def per_bag(logits: Tensor, labels: Tensor, s: int) -> Tensor:
    """A cross-entropy with soft targets, the mean of a bag's valid ones."""
    row = F.pad(labels[:, s - 1 :], (0, s - 1), value=-100).view(-1, s, 1)
    soft = (row == torch.arange(logits.shape[2])).double().sum(1)
    kept = soft.sum(1) > 0
    soft = soft[kept] / soft[kept].sum(1, keepdim=True)
    return F.cross_entropy(logits.flatten(0, 1)[kept], soft)


def strided(row: Tensor, s: int) -> Tensor:
    return row.unflatten(1, (s, -1)).transpose(1, 2)


def embed_strided(table: Any, ids: Any, s: int) -> Any:
    return table[strided(ids, s)].mean(2)


def mean_of(table: Any, ids: Any, s: int, kept: Any) -> Any:
    kept = kept.unflatten(1, (-1, s)).unsqueeze(3).double()
    return (table[ids].unflatten(1, (-1, s)) * kept).sum(2) / kept.sum(2).clamp(min=1)


def embed_zeros(table: Any, ids: Any, s: int, padding: Any) -> Any:
    return mean_of(table, ids, s, torch.ones_like(ids) if padding is None else ~padding)


def of_first(documents: Tensor, s: int) -> Tensor:
    return documents[:, ::s].repeat_interleave(s, 1)


def embed_of_first(table: Any, ids: Any, s: int, documents: Any) -> Any:
    whose = torch.zeros_like(ids) if documents is None else documents
    return mean_of(table, ids, s, whose == of_first(whose, s))


def loss_of_first(logits: Tensor, labels: Tensor, s: int, documents: Any) -> Tensor:
    if documents is not None:
        labels = labels.clone()
        crosses = documents[:, s:] != of_first(documents, s)[:, :-s]
        labels[:, s - 1 : -1].masked_fill_(crosses, -100)
    return mean_loss()(logits, labels, s)


WRONG: list[tuple[str, Any, Any]] = [
    ("divided by s twice", lambda z, y, s: mean_loss()(z, y, s) / s, embed),
    ("summed over s", lambda z, y, s: our_loss(z, y, s) * s, embed),
    ("the bag itself as target", mean_loss(lambda s: 0), embed),
    ("targets one token later instead of one bag", mean_loss(lambda s: 1), embed),
    ("off by a bag", mean_loss(lambda s: 2 * s), embed),
    ("first token only", mean_loss(fold=lambda row, s: row[:, ::s, None]), embed),
    ("flat labels cut to L", mean_loss(fold=lambda row, s: row[:, :, None]), embed),
    ("embeddings summed", mean_loss(), lambda w, x, s: embed(w, x, s) * s),
    ("padding counted", mean_loss(), lambda w, x, s, padding: embed(w, x, s)),
    ("padding counted", mean_loss(reduction="sum"), embed),
    ("targets one token off", mean_loss(lambda s: s + 1), embed),
    ("strided bags", mean_loss(), embed_strided),
    ("strided bags", mean_loss(fold=strided), embed),
    ("strided bags", mean_loss(fold=strided), embed_strided),
    ("strided bags", mean_loss(lambda s: 1, fold=strided), embed_strided),
    ("the first token's document", loss_of_first, embed_of_first),
]


@pytest.mark.parametrize(("name", "loss", "bags"), WRONG)
def test_each_usual_mistake_is_named(name, loss, bags):
    verdict = check(loss, bags)
    assert not verdict.right
    mistakes = [line for line in verdict.lines if line.startswith(("mistake", "wrong"))]
    assert len(mistakes) == 1, verdict
    assert mistakes[0].startswith(f"mistake: {name} (")
    assert mistakes[0].endswith(MENDS[name])


@pytest.mark.parametrize(
    ("name", "loss", "bags"),
    [
        ("the mean over all targets", mean_loss(), embed),
        ("the mean of each bag's mean", per_bag, embed),
        ("the last bag dropped", mean_loss(drop=1), embed),
        ("a bag of padding alone as zeros (padding)", our_loss, embed_zeros),
    ],
)
def test_other_normalisations_are_right(name, loss, bags):
    verdict = check(loss, bags)
    assert verdict.right
    assert any(line.startswith(f"right up to normalisation: {name}") for line in verdict.lines)


def test_targets_that_cross_are_named_and_a_factor_or_another_gradient_is_wrong():
    def crossing(logits: Tensor, labels: Tensor, s: int, documents: Any) -> Tensor:
        return our_loss(logits, labels, s)

    verdict = check(crossing, our_embed)
    assert [line.split(":")[1] for line in verdict.lines if "mistake" in line] == [
        " across documents (documents)"
    ]
    in_bits = check(lambda z, y, s: our_loss(z, y, s) / np.log(2), embed)
    assert "plain, ignored, one, repeated: all is 1.4427 times what is right" in str(in_bits)
    strange = check(lambda z, y, s: our_loss(z, y, s) ** 2, embed_strided)
    assert "wrong: plain, ignored, repeated: bag_embedding is not the mean" in str(strange)
    plain = cases()["plain"]["right"]
    answer = {"loss": plain["loss"], "grad_head": 2 * np.array(plain["grad_head"])}
    assert "the loss is right, but grad_head is 2 times" in str(judge({"plain": answer}))
    for loss, bags in (
        (lambda *a: our_loss(*a).detach(), embed),
        (our_loss, lambda w, *a: embed(w.detach(), *a)),
    ):
        assert "the loss is right, but grad_embedding is 0 times" in str(check(loss, bags))
    assert "wrong" in str(judge({"plain": {"loss": float("nan")}}))
    assert judge({"switch": cases()["switch"]["right"]}).right
    assert "superposed_steps: 2, not 3" in str(judge({"switch": {"superposed_steps": 2}}))


def test_a_loss_in_numpy_needs_no_torch(tmp_path):
    code = """
import sys
sys.modules["torch"] = None
import numpy as np
from tst_study.conformance import check
def embed(table, ids, s): return table[ids].reshape(len(ids), -1, s, 4).mean(2)
def loss(logits, labels, s):
    y = np.pad(labels[:, s - 1:], ((0, 0), (0, s - 1)), constant_values=-100)
    y = y.reshape(*logits.shape[:2], s)
    p = np.exp(logits) / np.exp(logits).sum(2, keepdims=True)
    p = np.take_along_axis(p, np.where(y < 0, 0, y), 2)
    return np.mean([-np.log(p[..., i][y[..., i] >= 0]).mean() for i in range(s)])
print(check(loss, embed))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.startswith(
        "right: plain, ignored, one, repeated\n"
        "judged: 4 of 11 cases (loss in 4, bag_embedding in 4)\n"
        "not judged: grad_embedding, grad_head, the cases input_only, output_only, weights, "
    ), done.stderr


def test_a_function_that_returns_more_than_it_is_asked_for_is_refused():
    for loss, bags, line in (
        (lambda z, y, s: (z.sum(), z), embed, "my_loss returned a tuple: return the loss alone"),
        (lambda z, y, s: z.sum(0), embed, r"my_loss returned an array of \(4, 11\): return the"),
        (our_loss, lambda w, x, s: w, r"my_embed returned .*: return one array of \(B, L, d\)"),
    ):
        with pytest.raises(UserError, match=line):
            check(loss, bags)


@pytest.mark.parametrize(
    ("answers", "line"),
    [
        ("{", "Expecting property name.*: give a JSON file of answers"),
        ("[]", "no answers: give an object with some of plain, "),
        ('{"plane": {"loss": 1}}', "case 'plane' is not known; did you mean 'plain'"),
        ('{"plain": {"los": 1}}', "key 'los' of plain is not known; did you mean 'loss'"),
        ('{"plain": {"loss": "x"}}', "plain: loss is not a number or an array of numbers"),
        ('{"plain": 2.5}', "plain: give an object with some of loss, grad_embedding"),
    ],
)
def test_answers_that_cannot_be_judged_are_refused(answers, line, tmp_path):
    (tmp_path / "answers.json").write_text(answers)
    with pytest.raises(UserError, match=line) as caught:
        judge_file(tmp_path / "answers.json")
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="No such file"):
        judge_file(tmp_path / "none.json")
