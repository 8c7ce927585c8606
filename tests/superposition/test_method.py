"""Superposition in any trainer: ten lines, and each way to get it wrong has its line."""

import json
import pickle
import subprocess
import sys
import warnings
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tst_study.superposition import (
    Superposition,
    bag_embedding,
    bag_inputs,
    bag_loss,
    steps_of_budget,
)

STEPS, POSITIONS, WORDS = 10, 6, 32


class Scaled(nn.Embedding):
    """A look-up with a factor, as Gemma's, which the weight alone does not show."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 8.0


def tst(**changes: object) -> Superposition:
    values: dict[str, object] = {"bag_size": 4, "step_ratio": 0.5, "steps": STEPS, **changes}
    return Superposition(**values)  # type: ignore[arg-type]


def text(length: int, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(WORDS, (batch, length + 1), generator=generator)


def test_the_ten_lines_are_the_paper_s_losses_in_both_phases():
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


def test_a_module_that_does_more_than_look_up_is_called():
    ids = text(POSITIONS * 4)[:, :-1]
    scaled = Scaled(WORDS, 8)
    plain = nn.Embedding(WORDS, 8, _weight=scaled.weight.detach())
    torch.testing.assert_close(tst().embed(scaled, ids, 0), 8.0 * tst().embed(plain, ids, 0))
    hooked = nn.Embedding(WORDS, 8, _weight=scaled.weight.detach())
    hooked.register_forward_hook(lambda module, inputs, output: output + 1.0)
    torch.testing.assert_close(tst().embed(hooked, ids, 0), tst().embed(plain, ids, 0) + 1.0)
    patched = nn.Embedding(WORDS, 8, _weight=scaled.weight.detach())  # as accelerate's hooks do
    patched.forward = scaled.forward  # type: ignore[method-assign]
    torch.testing.assert_close(tst().embed(patched, ids, 0), tst().embed(scaled, ids, 0))
    with pytest.raises(ValueError, match="a forward of its own"):
        tst().linear_loss(torch.ones(2, POSITIONS, 8), patched, ids, 0)


def test_an_attached_model_can_be_pickled_and_a_copy_counts_the_same_steps():
    method, table, ids = tst(), nn.Embedding(WORDS, 8), text(POSITIONS * 4)[:, :-1]
    method.attach(table)
    copied, stored = deepcopy(table), pickle.loads(pickle.dumps(table))
    method.advance(to=5)
    assert stored(input=ids).shape == (2, POSITIONS, 8)
    assert copied(ids[:, :POSITIONS]).shape == table(ids[:, :POSITIONS]).shape
    method.advance(to=0)
    method.attach(table)
    with pytest.raises(ValueError, match="bagged already: attach once"):
        table(ids)


def test_one_label_a_sequence_shows_no_shift():
    method, ids = tst(mode="output_only", positions=1, bag_size=1), text(1)
    with warnings.catch_warnings(action="error"):
        hidden = method.embed(nn.Embedding(WORDS, WORDS), ids[:, :1], 0)
        method.loss(hidden, ids[:, :1], 0)


def test_one_sided_superposition_and_weights_that_change():
    assert tst(mode="output_only").raw_length(0, POSITIONS) == POSITIONS
    assert tst(mode="output_only").phases.data_multiplier == 1.0
    assert tst(mode="input_only").objective(0).weighting == "first_token"
    rows = tst(weighting=((1.0, 1.0, 1.0, 1.0), (1.0, 0.0, 0.0, 0.0)))
    assert rows.objective(1).weighting == (1.0, 0.8, 0.8, 0.8)
    assert tst(weighting=torch.tensor([1.0, 1.0, 1.0, 0.0])).weighting == [1.0, 1.0, 1.0, 0.0]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("without_a_target", [0, 9])
@pytest.mark.parametrize("by", [0, 2, 4, 7])
def test_labels_that_are_not_shifted_by_one_are_refused_by_their_shift(
    by, without_a_target, compiled
):
    """Hugging Face's convention, where the model shifts its inputs; and the next bag by hand."""
    tokens, table = text(POSITIONS * 4 + 7), nn.Embedding(WORDS, WORDS)

    def loss(method: Superposition, shift: int, without: int) -> Tensor:
        labels = tokens[:, shift : shift + POSITIONS * 4].clone()
        labels[:, :without] = -100
        hidden = method.embed(table, tokens[:, : POSITIONS * 4], 0)
        return method.loss(hidden, labels, 0)

    run = torch.compile(loss, backend="eager") if compiled else loss
    run(tst(), 1, without_a_target)
    line = f"shifted by {by}: shift" if by else "tokens themselves: shift"
    method = tst()
    run(method, by, POSITIONS * 4 - 1)  # shows no shift
    with pytest.raises(ValueError, match=line):
        run(method, by, without_a_target)
    torch._dynamo.reset()


class Counting(nn.Module):
    """A model that is given the step, or leaves it to be counted."""

    def __init__(self, method: Superposition, how: str) -> None:
        super().__init__()
        self.table, self.own, self.how = nn.Embedding(WORDS, WORDS), method, how
        if how == "attached":
            method.attach(self.table)

    def forward(self, tokens: Tensor, step: int) -> Tensor:
        ids, told = tokens[:, :-1], step if self.how == "told" else None
        attached = self.how == "attached"
        hidden = self.table(ids) if attached else self.own.embed(self.table, ids, told)
        return self.own.loss(hidden.cumsum(1), tokens[:, 1:], told)


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13),
    reason="torch.compile of older torch breaks its graph at copy.deepcopy",
)
@pytest.mark.parametrize("how", ["told", "counted", "attached"])
@pytest.mark.parametrize("weighting", ["power_law", ((1.0,) * 4, (1.0, 0.0, 0.0, 0.0))])
def test_a_run_compiles_three_graphs(weighting, how):
    """One for the first step and one for each phase; one for each step if compiled code read the
    step or its weights as numbers."""
    graphs = 0

    def counted(module: Any, inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return module

    model = Counting(deepcopy(tst(steps=12, weighting=weighting)), how)
    compiled = torch.compile(model, backend=counted, fullgraph=True)
    for step in range(12):
        tokens = text(model.own.raw_length(step, POSITIONS))
        torch.testing.assert_close(compiled(tokens, step), model(tokens, step))
        model.own.advance(to=step + 1)
    assert graphs <= 3
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("settings", "lengths", "refused_at"),
    [
        ({}, [24, 24, 24], 2),  # a loader that reads as much before the switch as after it
        ({"positions": 24}, [24, 24, 24], 0),
        ({"positions": 6}, [24, 24, 6], None),
        ({}, [24, 20, 6], 1),
        ({"positions": "any"}, [24, 20, 7], None),
        ({"mode": "output_only"}, [6, 6, 6], None),
    ],
)
def test_a_loader_that_does_not_fit_is_refused_when_that_can_be_seen(settings, lengths, refused_at):
    method, table = tst(**settings), nn.Embedding(WORDS, 8)
    for place, (step, length) in enumerate(zip((0, 4, 5), lengths, strict=True)):
        if place == refused_at:
            with pytest.raises(ValueError, match=r"ids at step ., not .*: embed raw_length"):
                method.embed(table, text(length)[:, :-1], step)
            return
        method.embed(table, text(length)[:, :-1], step)
        if isinstance(method.positions, int):
            assert method.raw_length(step) == length


def test_steps_beyond_the_end_are_next_token_steps_and_warn_once():
    """litgpt fetches one batch more than it trains on, nanoGPT trains `max_iters + 1` steps."""
    method, table, tokens = tst(), nn.Embedding(WORDS, WORDS), text(POSITIONS)
    assert method.raw_length(STEPS, POSITIONS) == POSITIONS  # a batch fetched early is no step
    with pytest.warns(UserWarning, match="step 10 lies beyond the 10 steps"):
        hidden = method.embed(table, tokens[:, :-1], STEPS)
    with warnings.catch_warnings(action="error"):
        loss = method.loss(hidden, tokens[:, 1:], STEPS)
        method.embed(table, tokens[:, :-1], STEPS + 1)
    assert torch.equal(
        loss, F.cross_entropy(table(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    )


def test_evaluation_mode_embeds_tokens_and_has_no_bag_loss():
    method, table, tokens = tst(mode="output_only"), nn.Embedding(WORDS, WORDS).eval(), text(7)
    assert torch.equal(method.embed(table, tokens[:, :-1], 0), table(tokens[:, :-1]))
    with pytest.raises(ValueError, match="evaluation mode: methods are compared by next-token"):
        method.loss(table(tokens[:, :-1]), tokens[:, 1:], 0)


def test_a_check_finds_no_mistake_in_another_model_s_embedding():
    """A teacher's or an average's, the next tokens' of multi-token prediction, another device's."""
    method, table, ids = tst(bag_size=np.int64(4)), nn.Embedding(WORDS, WORDS), text(4 * 7)
    method.attach(table)
    for step in range(2):
        hidden = table(ids[:, :-1])
        deepcopy(table).eval()(ids[:, :-1])
        table(ids[:, 1:])
        method.linear_loss(hidden, table, ids[:, 1:])
        method.advance()
        assert (method.step, method._calls.checked_phases) == (step + 1, {True})
    assert {type(method.state_dict()[name]) for name in ("step", "bag_size")} == {int}
    elsewhere = tst()
    elsewhere.embed(nn.Embedding(WORDS, 8, device="meta"), ids[:, :-1].to("meta"))
    elsewhere.loss(torch.randn(2, 7, WORDS), ids[:, 1:])


def test_a_resumed_run_goes_on_at_its_step_with_its_settings():
    method, table = tst(weighting=[[1, 1, 1, 1], [1, 0, 0, 0]]), nn.Embedding(WORDS, 8)
    for _ in range(7):
        method.embed(table, text(method.raw_length(method.step, POSITIONS))[:, :-1])
        method.advance()
    state = json.loads(json.dumps(method.state_dict()))
    resumed = tst(weighting=((1.0, 1, 1, 1), (1, 0, 0, 0)))
    resumed.load_state_dict(state)
    assert resumed.step == 7
    with pytest.raises(ValueError, match="step = 0, but the run was resumed at step 7"):
        resumed.embed(table, text(POSITIONS)[:, :-1], 0)
    with pytest.raises(ValueError, match=r"= 10 of 20 steps, .* has 5 of 10: give superposed_ste"):
        tst(steps=20, weighting=((1.0, 1, 1, 1), (1, 0, 0, 0))).load_state_dict(state)
    longer = tst(steps=20, step_ratio=None, superposed_steps=5, weighting=resumed.weighting)
    longer.load_state_dict(state)
    assert (longer.step, longer.objective().name) == (7, "next_token")
    assert longer.objective(4).bag_size == 4
    numbers = tst(weighting=list(np.array([1.0, 0.5, 0.25, 0.0])))
    assert numbers.state_dict()["weighting"] == [[1.0, 0.5, 0.25, 0.0]]


@pytest.mark.parametrize("order", ["main first", "auxiliary first", "never"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_head_on_a_later_target_may_come_before_the_main_one(order, compiled):
    """Multi-token prediction: the bag after the next, with labels shifted by a bag more."""
    tokens, table = text(POSITIONS * 4 + 4), nn.Embedding(WORDS, WORDS)
    later, ids = tokens[:, 5:], tokens[:, :-5]
    method = tst(positions="any")

    def losses() -> Tensor:
        hidden = method.embed(table, ids)
        labels = [tokens[:, 1:-4], later]
        labels = {"main first": labels, "auxiliary first": labels[::-1], "never": [later]}[order]
        return sum(method.loss(hidden, each) for each in labels)  # type: ignore[return-value]

    run = torch.compile(losses, backend="eager") if compiled else losses
    for _ in range(3):
        run()
        if order == "never":
            with pytest.raises(ValueError, match="labels are shifted by 5: shift them by one"):
                method.advance()
            break
        method.advance()
    torch._dynamo.reset()


@pytest.mark.parametrize("order", ["w23", "2w3", "23w"])
@pytest.mark.parametrize(("shift", "line"), [(1, ""), (0, "tokens themselves"), (4, "by 4")])
def test_tables_of_hashes_beside_the_tokens_change_no_verdict(order, shift, line):
    tokens = text(POSITIONS * 4 + 4)
    ids = tokens[:, : POSITIONS * 4]
    streams = {"w": ids, "2": ids * 31 % WORDS, "3": (ids * 7 + ids.roll(1, 1)) % WORDS}
    method, labels = tst(), tokens[:, shift : shift + POSITIONS * 4]
    tables = {name: nn.Embedding(WORDS, WORDS) for name in streams}
    hidden = sum(method.embed(tables[name], streams[name], 0) for name in order)
    with warnings.catch_warnings(action="error"):
        if not line:
            method.loss(hidden, labels, 0)
            return
        with pytest.raises(ValueError, match=line):
            method.loss(hidden, labels, 0)


class ManyTables(nn.Module):
    """A frozen table with a LoRA, and n-grams that a layer looks up by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.low, self.grams = (nn.Embedding(WORDS, n) for n in (8, 2, 8))
        self.up = nn.Linear(2, 8, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        embedded: Tensor = self.base(ids) + self.up(self.low(ids)) + self.grams(ids * 31 % WORDS)
        return embedded


def test_a_table_that_was_not_attached_is_named():
    ids, model = text(POSITIONS * 4)[:, :-1], ManyTables()
    expected = model(ids).unflatten(1, (-1, 4)).mean(2)
    method = tst()
    for table, missing in ((model.base, "low"), (model.low, "grams")):
        method.attach(table, model)
        with pytest.raises(
            ValueError, match=f"layer '{missing}' reads 24 ids for 6 positions: att"
        ):
            model(ids)
    method.attach(model.grams, model)
    torch.testing.assert_close(model(ids), expected)
    method.advance(to=5)
    assert model(ids[:, :POSITIONS]).shape == (2, POSITIONS, 8)


def test_falling_bag_sizes_are_one_object_for_each():
    stages = [Superposition(4, superposed_steps=3, steps=3), Superposition(2, 0.5, 4, positions=6)]
    table, head, sizes = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS), []
    for step in range(7):
        now, done = (stages[0], step) if step < 3 else (stages[1], step - 3)
        tokens = text(now.raw_length(done, POSITIONS))
        now.loss(head(now.embed(table, tokens[:, :-1], done)), tokens[:, 1:], done).backward()
        sizes.append(now.objective(done).bag_size)
    assert sizes == [4, 4, 4, 2, 2, 1, 1]


def test_a_budget_in_tokens_seconds_or_flops_becomes_steps():
    tiers = steps_of_budget(16, superposed=30e12, recovery=5e12, per_step=4e6)
    assert tiers == {"superposed_steps": 468_750, "steps": 1_718_750}
    method = Superposition(16, **tiers)
    assert method.phases.tokens_read(468_750, 4_000_000) == 30e12
    hour = steps_of_budget(4, superposed=1080, recovery=2520, per_step=0.9, unit="seconds")
    assert hour == {"superposed_steps": 1200, "steps": 4000}
    aside = steps_of_budget(4, superposed=100, recovery=100, per_step=1, mode="output_only")
    assert aside == {"superposed_steps": 100, "steps": 200}
    with pytest.raises(ValueError, match="per_step = 0 must be positive"):
        steps_of_budget(4, superposed=1, recovery=1, per_step=0)
    with pytest.raises(ValueError, match="per_step = 9 is more than the budget of both phases"):
        steps_of_budget(4, superposed=1, recovery=1, per_step=9)


def test_completion_shows_the_public_names_alone():
    import tst_study.superposition as package

    assert dir(package) == sorted(package.__all__)
    assert "Superposition" in dir(package)


def test_a_share_of_the_steps_that_is_none_of_them_warns():
    with pytest.warns(UserWarning, match="step_ratio = 0.04 of 10 steps is rounded to none"):
        tst(step_ratio=0.04)
    with warnings.catch_warnings(action="error"):
        tst(step_ratio=0.04, bag_size=1)
        tst(step_ratio=0.0)


def test_bags_of_one_token_have_the_bits_of_float32_logits():
    """A model in pure bfloat16 that takes the cross-entropy in bfloat16 rounds its loss."""
    tokens, logits = text(64), torch.randn(2, 64, WORDS).bfloat16().requires_grad_()
    loss = tst(bag_size=1).loss(logits, tokens[:, 1:], 0)
    wide = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
    assert torch.equal(loss, wide)
    (ours,), (theirs,) = (torch.autograd.grad(x, logits) for x in (loss, wide))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (lambda m, e, t: m.embed(e.weight, t, 0), "pass the module, not its weight"),
        (lambda m, e, t: m.embed(e, t[:, :-1], 0), r"must be \(batch, l · 4\)"),
        (lambda m, e, t: m.embed(e, t[:, :0], 0), r"must be \(batch, l · 4\)"),
        (lambda m, e, t: m.embed(e, t.to(torch.uint16), 0), r"tokens are torch\.uint16"),
        (lambda m, e, t: m.embed(e, t, -1), "step = -1: steps count from 0"),
        (lambda m, e, t: m.loss(m.embed(e, t, 0), t.where(t > 3, -1), 0), "mark positions without"),
        (lambda m, e, t: m.loss(m.embed(e, t, 0)[:, 1:], t + 1, 0), "logits must be"),
        (
            lambda m, e, t: m.linear_loss(e.weight[None], m.embed(e, t, 0)[0], t + 1, 0),
            "hidden must",
        ),
        (lambda m, e, t: m.linear_loss(m.embed(e, t, 0), nn.Linear(8, 32), t + 1, 0), "a bias"),
        (lambda m, e, t: m.linear_loss(m.embed(e, t, 0), Scaled(32, 8), t + 1, 0), "a forward of"),
        (lambda m, e, t: tst(weighting=(1.0, 2.0)), "weighting has 2 numbers; bag_size 4"),
        (lambda m, e, t: tst(step_ratio=30), "step_ratio = 30"),
        (
            lambda m, e, t: tst(superposed_steps=3),
            "step_ratio = 0.5, superposed_steps = 3: give one",
        ),
        (
            lambda m, e, t: Superposition(4, steps=9),
            "step_ratio = None, superposed_steps = None: giv",
        ),
        (lambda m, e, t: Superposition(4, steps=9, superposed_steps=10), "in 0 … steps = 9"),
        (lambda m, e, t: tst(bag_size=4.0), "bag_size = 4.0 and .* must be whole numbers"),
        (lambda m, e, t: tst(step_ratio="0.3"), "step_ratio = '0.3' a number in 0 … 1"),
        (lambda m, e, t: tst(weighting=3), "weighting 3 must be a name or 4 numbers"),
        (lambda m, e, t: tst(loss_kind=None), "loss_kind = None or weighting = 'uniform': "),
        (lambda m, e, t: tst(positions="all"), "positions = 'all' must be L"),
        (lambda m, e, t: tst(mode="outputonly"), "mode 'outputonly' is unknown: use one of full"),
    ],
)
def test_each_wrong_use_has_its_line(wrong, line):  # type: ignore[no-untyped-def]
    with pytest.raises((ValueError, TypeError), match=line) as caught:
        wrong(tst(), nn.Embedding(WORDS, 8), text(POSITIONS * 4)[:, :-1])
    assert "\n" not in str(caught.value)


def test_torch_is_all_that_it_needs():
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
