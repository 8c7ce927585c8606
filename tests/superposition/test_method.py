"""Superposition in any trainer: ten lines, and each way to get it wrong has its line."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tst_study.superposition as package
from tst_study.superposition import Superposition, bag_embedding, bag_inputs, bag_loss

STEPS, POSITIONS, WORDS = 10, 6, 32


class Scaled(nn.Embedding):
    """As Gemma's: a look-up with a factor, which the weight alone does not show."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 8.0


def tst(**changes: object) -> Superposition:
    values: dict[str, object] = {"bag_size": 4, "step_ratio": 0.5, "steps": STEPS, **changes}
    return Superposition(**values)  # type: ignore[arg-type]


def text(length: int, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(WORDS, (batch, length + 1), generator=generator)


def test_the_ten_lines_are_the_paper_s_losses_in_both_phases() -> None:
    method, table, head = tst(), nn.Embedding(WORDS, 8), nn.Linear(8, WORDS, bias=False)
    for step in range(STEPS):
        tokens = text(method.raw_length(step, POSITIONS))
        hidden = method.embed(table, tokens[:, :-1], step)
        assert hidden.shape == (2, POSITIONS, 8)
        loss = method.loss(head(hidden), tokens[:, 1:], step)
        if step < 5:
            assert torch.equal(hidden, bag_embedding(table.weight, bag_inputs(tokens[:, :-1], 4)))
            assert torch.equal(loss, bag_loss(head(hidden), tokens[:, 1:], 4))
        else:
            assert torch.equal(hidden, table(tokens[:, :-1]))
            plain = F.cross_entropy(head(hidden).flatten(0, 1), tokens[:, 1:].flatten())
            assert torch.equal(loss, plain)
        torch.testing.assert_close(method.linear_loss(hidden, head, tokens[:, 1:], step), loss)


def test_a_module_that_does_more_than_look_up_is_called() -> None:
    ids = text(POSITIONS * 4)[:, :-1]
    scaled = Scaled(WORDS, 8)
    plain = nn.Embedding(WORDS, 8, _weight=scaled.weight.detach())
    torch.testing.assert_close(tst().embed(scaled, ids, 0), 8.0 * tst().embed(plain, ids, 0))
    hooked = nn.Embedding(WORDS, 8, _weight=scaled.weight.detach())
    hooked.register_forward_hook(lambda module, inputs, output: output + 1.0)
    torch.testing.assert_close(tst().embed(hooked, ids, 0), tst().embed(plain, ids, 0) + 1.0)


def test_one_sided_superposition_and_weights_that_change() -> None:
    assert tst(mode="output_only").raw_length(0, POSITIONS) == POSITIONS
    assert tst(mode="output_only").data_multiplier == 1.0
    assert tst(mode="input_only").objective(0).weighting == "first_token"
    by_step = tst(weighting=lambda step: (1.0, 1.0 / (1 + step), 0.0, 0.0))
    assert by_step.objective(3).weighting == (1.0, 0.25, 0.0, 0.0)
    rows = tst(weighting=((1.0, 1.0, 1.0, 1.0), (1.0, 0.0, 0.0, 0.0)))
    assert rows.objective(1).weighting == (1.0, 0.8, 0.8, 0.8)
    assert "2.5 times the text" in str(tst())
    assert "weights power_law" in str(tst(weighting="power_law"))
    assert str(tst(bag_size=1)).startswith("Baseline")


def test_micro_batches_add_up_with_the_counts_of_the_step() -> None:
    method, tokens = tst(), text(POSITIONS * 4, batch=4)
    logits, labels = torch.randn(4, POSITIONS, WORDS), tokens[:, 1:].clone()
    labels[0, :9] = -100
    counts = method.objective(0).count_targets(labels)
    parts = [
        method.loss(logits[i : i + 1], labels[i : i + 1], 0, valid_counts=counts) for i in range(4)
    ]
    torch.testing.assert_close(sum(parts), method.loss(logits, labels, 0))


@pytest.mark.parametrize(("by", "line"), [(0, "tokens themselves: shift"), (4, "shifted by 4: ")])
@pytest.mark.parametrize("without_a_target", [0, 9])
def test_labels_that_are_not_shifted_by_one_are_refused(
    by: int, line: str, without_a_target: int
) -> None:
    """Hugging Face's convention, where the model shifts its inputs; and the next bag by hand."""
    tokens = text(POSITIONS * 4 + 4)
    method, table = tst(), nn.Embedding(WORDS, WORDS)
    for right in (1, by):
        hidden = method.embed(table, tokens[:, : POSITIONS * 4], 0)
        labels = tokens[:, right : right + POSITIONS * 4].clone()
        labels[:, :without_a_target] = -100
        if right == 1:
            method.loss(hidden, labels, 0)
            continue
        with pytest.raises(ValueError, match=line):
            method.loss(hidden, labels, 0)


@pytest.mark.parametrize("length", [POSITIONS, POSITIONS * 4])
def test_a_loader_that_reads_the_same_in_both_phases_is_refused_at_the_switch(length: int) -> None:
    method, table = tst(), nn.Embedding(WORDS, 8)
    tokens = text(4 * length)[:, : 4 * length]
    for step in range(5):
        method.embed(table, tokens, step)
    with pytest.raises(
        ValueError, match=r"before the switch .* raw_length\(step, L\) ids, 4 times"
    ):
        method.embed(table, tokens, 5)


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (lambda m, e, t: m.embed(e.weight, t, 0), "pass the module, not its weight"),
        (lambda m, e, t: m.embed(e, t[:, :-1], 0), r"must be \(batch, l · 4\)"),
        (lambda m, e, t: m.embed(e, t[:, :0], 0), r"must be \(batch, l · 4\)"),
        (lambda m, e, t: m.embed(e, t.to(torch.uint16), 0), r"tokens are torch\.uint16"),
        (lambda m, e, t: m.embed(e, t, STEPS), "step = 10 lies outside 0 … 9"),
        (lambda m, e, t: m.loss(m.embed(e, t, 0), t.where(t > 3, -1), 0), "mark positions without"),
        (lambda m, e, t: m.loss(m.embed(e, t, 0)[:, 1:], t + 1, 0), "logits must be"),
        (
            lambda m, e, t: m.linear_loss(e.weight[None], m.embed(e, t, 0)[0], t + 1, 0),
            "hidden must",
        ),
        (lambda m, e, t: m.linear_loss(m.embed(e, t, 0), nn.Linear(8, 32), t + 1, 0), "a bias"),
        (lambda m, e, t: tst(weighting=(1.0, 2.0)), "weighting has 2 numbers; bag_size 4"),
        (lambda m, e, t: tst(step_ratio=30), "step_ratio = 30"),
        (lambda m, e, t: tst(mode="outputonly"), "mode 'outputonly' is unknown: use one of full"),
    ],
)
def test_each_wrong_use_has_its_line(wrong, line: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises((ValueError, TypeError), match=line) as caught:
        wrong(tst(), nn.Embedding(WORDS, 8), text(POSITIONS * 4)[:, :-1])
    assert "\n" not in str(caught.value)


def test_every_public_name_is_listed() -> None:
    assert set(package.__all__) == set(dir(package))
    assert all(getattr(package, name) is not None for name in package.__all__)


def test_torch_is_all_that_it_needs() -> None:
    """Everything else of ours and of others is blocked; only torch may bring what it brings."""
    code = """
import sys
import torch
brought = set(sys.modules)
class Blocker:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        ours = name.split(".")[:2] in (["tst_study"], ["tst_study", "superposition"])
        if not ours and top not in sys.stdlib_module_names and top not in brought:
            raise ImportError(f"{name} is blocked")
for name in ("numpy", "pydantic", "megatron", "pandas", "scipy"):
    if name not in brought:
        sys.modules[name] = None
sys.meta_path.insert(0, Blocker())
import tst_study.superposition as s
for name in s.__all__:
    getattr(s, name)
m = s.Superposition(bag_size=2, step_ratio=0.5, steps=2)
e, t = torch.nn.Embedding(9, 9), torch.arange(9)[None]
print(float(m.linear_loss(m.embed(e, t[:, :-1], 0), e, t[:, 1:], 0)) > 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr
