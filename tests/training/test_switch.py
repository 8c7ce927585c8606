"""The switch changes the fold of the input and the loss, and nothing else."""

from itertools import pairwise

import pytest
import torch

from tests.tiny_runs import MIXTURE, MUON, assert_same_tensors, run
from tst_study.model.initialization import EMBEDDINGS
from tst_study.parallel.optimizer import ModelOptimizer

State = dict[str, torch.Tensor]
BF16 = ("numerics.dtype=bfloat16",)


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> list[tuple[State, State]]:
    """Weights, moments and step counts before and after every optimizer step of the test."""
    seen: list[tuple[State, State]] = []
    step = ModelOptimizer.step

    def recording_step(self: ModelOptimizer, learning_rate: float) -> torch.Tensor:
        before = _state(self)
        norm = step(self, learning_rate)
        seen.append((before, _state(self)))
        return norm

    monkeypatch.setattr(ModelOptimizer, "step", recording_step)
    return seen


def _state(optimizer: ModelOptimizer) -> State:
    names = {id(p): name for name, p in optimizer.model.module.named_parameters()}
    found: State = {}
    for parameter, main in zip(optimizer.parameters, optimizer.main, strict=True):
        name = names[id(parameter)]
        found[f"weight {name}"] = parameter.detach().clone()
        found[f"main {name}"] = main.detach().clone()
        for key, value in optimizer.state_of(main).items():
            found[f"{key} {name}"] = value.clone()
    return found


@pytest.mark.parametrize(
    "overrides", [(), BF16, ("superposition.mode=output_only",), MIXTURE, MUON], ids=str
)
def test_weights_and_optimizer_state_pass_the_switch_untouched(words, tmp_path, states, overrides):
    run(words, tmp_path, *overrides)
    for (_, after), (before, _) in pairwise(states):
        assert_same_tensors(after, before)
    last = states[-1][1]
    steps = {float(value) for name, value in last.items() if name.startswith("step ")}
    assert steps == {20.0}


@pytest.mark.parametrize("overrides", [(), BF16, MUON], ids=str)
def test_with_a_reset_the_moments_begin_anew_and_the_weights_do_not(
    words, tmp_path, states, overrides
):
    run(words, tmp_path, "superposition.optimizer_at_switch=reset", *overrides)
    (_, after), (before, _) = states[9], states[10]
    assert set(before) == {name for name in after if name.startswith(("weight ", "main "))}
    assert all(torch.equal(before[name], after[name]) for name in before)
    steps = {float(x) for name, x in states[-1][1].items() if name.startswith("step ")}
    assert steps == {10.0}


@pytest.mark.parametrize("tied", ["true", "false"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_with_reinitialization_embedding_and_head_are_new_and_the_rest_is_not(
    words, tmp_path, states, dtype, tied
):
    settings = (f"numerics.dtype={dtype}", f"model.tied_embeddings={tied}")
    run(words, tmp_path, "superposition.reinitialize_at_switch=true", *settings)
    new = set(EMBEDDINGS) & {name.removeprefix("weight ") for name in states[0][0]}
    for number, ((_, after), (before, _)) in enumerate(pairwise(states)):
        changed = {name for name in after if not torch.equal(before[name], after[name])}
        at_switch = {f"{part} {name}" for part in ("weight", "main") for name in new}
        assert changed == (at_switch if number == 9 else set())
    (first, _), (before, _) = states[0], states[10]
    for name in new:  # not the weights that the run began with
        weight, main = before[f"weight {name}"], before[f"main {name}"]
        assert not torch.equal(weight, first[f"weight {name}"])
        assert weight.float().std().item() == pytest.approx(0.02, rel=0.15)
        assert torch.equal(main.to(weight.dtype).flatten(), weight.flatten())
