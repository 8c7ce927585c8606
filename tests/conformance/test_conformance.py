"""The check of other implementations calls right ones right, and each usual mistake by its name."""

import json
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.conformance.from_the_paper import loss_and_gradients
from tst_study.conformance import cases, check, judge
from tst_study.conformance.generate import MISTAKES, generate
from tst_study.conformance.judging import CASES, MENDS, judge_file
from tst_study.errors import UserError
from tst_study.superposition import Superposition


def test_the_cases_are_what_their_generator_computes() -> None:
    def assert_same(found: Any, expected: Any) -> None:
        if isinstance(expected, dict):
            assert list(found) == list(expected)
            assert_same([*found.values()], [*expected.values()])
        elif isinstance(expected, list):
            assert len(found) == len(expected)
            for one, other in zip(found, expected, strict=True):
                assert_same(one, other)
        elif isinstance(expected, str):
            assert found == expected
        else:
            assert found == pytest.approx(expected, rel=1e-11, abs=1e-12)

    assert_same(json.loads(CASES.read_text()), json.loads(json.dumps(generate())))
    assert set(MISTAKES) == set(MENDS)


def test_cases_are_only_appended_to() -> None:
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


def test_what_each_mistake_prints_is_told_apart_in_the_plain_case() -> None:
    plain = cases()["plain"]
    values = [plain["right"]["loss"], *(each["loss"] for each in plain["normalisations"].values())]
    values += [loss for losses in plain["mistakes"].values() for loss in losses]
    assert np.diff(np.sort(values)).min() > 1e-4
    assert list(plain["mistakes"]) == [name for name in MISTAKES if name != "across documents"]


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


def test_the_package_itself_is_right_in_every_case() -> None:
    verdict = check(our_loss, our_embed)
    assert verdict.right
    assert verdict.lines == (f"right: {', '.join(cases())}",)


# --- somebody else's ------------------------------------------------------------------------------


def test_an_implementation_from_the_paper_s_text_is_right() -> None:
    answers = {}
    for name in ("plain", "ignored", "one", "repeated"):
        case = {key: np.array(value) for key, value in cases()[name].items() if key != "right"}
        given = (case[key] for key in ("embedding", "head", "ids", "labels"))
        loss, of_table, of_head = loss_and_gradients(*given, int(case["bag_size"]))  # type: ignore[arg-type]
        answers[name] = {"loss": loss, "grad_embedding": of_table, "grad_head": of_head}
    case = cases()["switch"]
    table, head = np.array(case["embedding"]), np.array(case["head"])
    losses, tokens, superposed = [], [0, 0], round(case["step_ratio"] * case["steps"])
    for step, batch in enumerate(case["batches"]):
        ids, labels = np.array(batch["ids"]), np.array(batch["labels"])
        size = case["bag_size"] if step < superposed else 1
        loss, of_table, of_head = loss_and_gradients(table, head, ids, labels, size)
        table, head = table - 0.5 * of_table, head - 0.5 * of_head
        losses.append(loss)
        tokens[step >= superposed] += ids.size
    answers["switch"] = {"losses": losses, "superposed_steps": superposed, "tokens": tokens}
    verdict = judge(answers)
    assert verdict.right
    assert verdict.lines[0] == "right: plain, ignored, one, repeated, switch"


def embed(table: Any, ids: Any, s: int) -> Any:
    return table[ids].reshape(len(ids), -1, s, table.shape[1]).mean(2)


def mean_loss(shift: int = -1, drop: int = 0, size: int | None = None) -> Callable[..., Tensor]:
    """A usual one, over all targets. The labels are shifted by `shift` more (−1: s − 1)."""

    def loss(logits: Tensor, labels: Tensor, s: int) -> Tensor:
        more = s - 1 if shift == -1 else shift * s if shift > 1 else shift
        targets = F.pad(labels[:, more:], (0, more), value=-100).unflatten(1, (-1, s))
        logits, targets = (x[:, : x.shape[1] - drop] for x in (logits, targets[..., :size]))
        rows = logits.unsqueeze(2).expand(-1, -1, targets.shape[2], -1)
        return F.cross_entropy(rows.flatten(0, 2), targets.flatten())

    return loss


def of_itself(logits: Tensor, labels: Tensor, s: int) -> Tensor:
    targets = F.pad(labels, (1, 0), value=-100)[:, :-1].unflatten(1, (-1, s))
    rows = logits.unsqueeze(2).expand(-1, -1, s, -1)
    return F.cross_entropy(rows.flatten(0, 2), targets.flatten())


def two_bags_on(logits: Tensor, labels: Tensor, s: int) -> Tensor:
    labels = F.pad(labels[:, s:], (0, s), value=-100)
    return mean_loss()(logits, labels, s)


def flat(logits: Tensor, labels: Tensor, s: int) -> Tensor:
    shifted = F.pad(labels[:, s - 1 :], (0, s - 1), value=-100)
    return F.cross_entropy(logits.flatten(0, 1), shifted[:, : logits.shape[1]].flatten())


def with_ignored(logits: Tensor, labels: Tensor, s: int) -> Tensor:
    targets = F.pad(labels[:, s - 1 :], (0, s - 1), value=-100).unflatten(1, (-1, s))
    rows = logits.unsqueeze(2).expand(-1, -1, s, -1)
    return F.cross_entropy(rows.flatten(0, 2), targets.flatten(), reduction="sum") / targets.numel()


def summed(table: Any, ids: Any, s: int) -> Any:
    return embed(table, ids, s) * s


def with_padding(table: Any, ids: Any, s: int, padding: Any) -> Any:
    return embed(table, ids, s)


def divided(logits: Tensor, labels: Tensor, s: int) -> Tensor:
    return mean_loss()(logits, labels, s) / s


def times_s(logits: Tensor, labels: Tensor, s: int) -> Tensor:
    return our_loss(logits, labels, s) * s


WRONG: list[tuple[str, Any, Any]] = [
    ("divided by s twice", divided, embed),
    ("summed over s", times_s, embed),
    ("the bag itself as target", of_itself, embed),
    ("targets one token later instead of one bag", mean_loss(0), embed),
    ("off by a bag", two_bags_on, embed),
    ("first token only", mean_loss(size=1), embed),
    ("flat labels cut to L", flat, embed),
    ("embeddings summed", mean_loss(), summed),
    ("padding counted", mean_loss(), with_padding),
    ("padding counted", with_ignored, embed),
]


@pytest.mark.parametrize(("name", "loss", "bags"), WRONG)
def test_each_usual_mistake_is_named(name: str, loss: Any, bags: Any) -> None:
    verdict = check(loss, bags)
    assert not verdict.right
    mistakes = [line for line in verdict.lines if line.startswith(("mistake", "wrong"))]
    assert len(mistakes) == 1, verdict
    assert mistakes[0].startswith(f"mistake: {name} (")
    assert mistakes[0].endswith(MENDS[name])


@pytest.mark.parametrize(
    ("name", "loss"),
    [("the mean over all targets", mean_loss()), ("the last bag dropped", mean_loss(drop=1))],
)
def test_two_other_normalisations_are_right(name: str, loss: Any) -> None:
    verdict = check(loss, embed)
    assert verdict.right
    assert any(line.startswith(f"right up to normalisation: {name}") for line in verdict.lines)


def test_targets_that_cross_are_named_and_a_factor_or_another_gradient_is_wrong() -> None:
    def crossing(logits: Tensor, labels: Tensor, s: int, documents: Any) -> Tensor:
        return our_loss(logits, labels, s)

    verdict = check(crossing, our_embed)
    assert [line.split(":")[1] for line in verdict.lines if "mistake" in line] == [
        " across documents (documents)"
    ]
    in_bits = check(lambda z, y, s: our_loss(z, y, s) / np.log(2), embed)
    assert "plain: all is 1.4427 times what is right" in str(in_bits)
    plain = cases()["plain"]["right"]
    answer = {"loss": plain["loss"], "grad_head": 2 * np.array(plain["grad_head"])}
    assert "the loss is right, but grad_head is 2 times" in str(judge({"plain": answer}))
    assert "wrong" in str(judge({"plain": {"loss": float("nan")}}))
    assert "superposed_steps: 2, not 3" in str(judge({"switch": {"superposed_steps": 2}}))


def test_a_loss_in_numpy_needs_no_torch(tmp_path: Path) -> None:
    code = """
import sys
sys.modules["torch"] = None
import numpy as np
from tst_study.conformance import check
from tests.conformance.from_the_paper import softmax
def embed(table, ids, s): return table[ids].reshape(len(ids), -1, s, 4).mean(2)
def loss(logits, labels, s):
    y = np.pad(labels[:, s - 1:], ((0, 0), (0, s - 1)), constant_values=-100)
    y = y.reshape(*logits.shape[:2], s)
    p = np.take_along_axis(softmax(logits), np.where(y < 0, 0, y), 2)
    return np.mean([-np.log(p[..., i][y[..., i] >= 0]).mean() for i in range(s)])
print(check(loss, embed))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.startswith("right: plain, ignored, one, repeated\n"), done.stderr


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
def test_answers_that_cannot_be_judged_are_refused(answers: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "answers.json").write_text(answers)
    with pytest.raises(UserError, match=line) as caught:
        judge_file(tmp_path / "answers.json")
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="No such file"):
        judge_file(tmp_path / "none.json")
