"""Each phase's loss is the definition's, from the fold of the input to the bag of targets."""

import pytest
import torch
import torch.nn.functional as F

from tests.layouts import standing_still
from tests.superposition.naive import bag_set_loop, multi_hot_loop
from tests.tiny_runs import VOCABULARY, built, randomize_norms, tiny
from tst_study.batches import StepBatches
from tst_study.config.phase_plan import plan_phases
from tst_study.config.schema import Experts
from tst_study.data.run_data import open_stream
from tst_study.model.model import Targets
from tst_study.parallel.optimizer import ModelOptimizer
from tst_study.record.reader import read
from tst_study.superposition.steps import NEXT_TOKEN
from tst_study.train import train

MODES = ("full", "input_only", "output_only")


def weights_of_offsets(config_overrides: tuple[str, ...], bag_size: int) -> list[float]:
    if "superposition.mode=input_only" in config_overrides:
        return [1.0] + [0.0] * (bag_size - 1)
    if "superposition.weighting=power_law" in config_overrides:
        return [1.0 / i for i in range(1, bag_size + 1)]
    return [1.0] * bag_size


@pytest.mark.parametrize(
    "overrides",
    [
        *[(f"superposition.mode={mode}",) for mode in MODES],
        ("superposition.bag_size=3",),
        ("superposition.weighting=power_law",),
        ("superposition.mode=output_only", "model.tied_embeddings=true"),
        ("superposition.bag_size=1",),
        ("superposition.bag_size=1", "label_smoothing={epsilon=0.3, last_step=1}"),
        ("superposition.loss=sum_to_one",),
        ("superposition.loss=hinge",),
    ],
    ids=str,
)
def test_loss_and_gradients_are_those_of_a_plain_computation(words, overrides):
    config = tiny(words, *overrides, "model.initial_deviation=0.2")
    objective = plan_phases(config).objective(0)
    generator = torch.Generator().manual_seed(0)
    shape = (3, 6 * objective.stride)
    ids = torch.randint(VOCABULARY, shape, generator=generator)
    labels = torch.randint(VOCABULARY, shape, generator=generator)
    labels[torch.rand(shape, generator=generator) < 0.2] = -100
    with built(config) as (model, _):
        randomize_norms(model)
        targets = Targets(labels, objective.count_targets(labels), objective)
        loss = model(objective.fold(ids), targets)
        loss.backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        model.zero_grad()
        bags = ids.view(3, 6, objective.stride)
        means = model.embedding.word_embeddings.weight[bags].mean(2)
        torch.testing.assert_close(model.embed(bags).transpose(0, 1), means)
        # Stock transformers confirms the decoder.
        logits = model.predict(model.decoder(means.transpose(0, 1), model.rotary(6)), None)
        weights = weights_of_offsets(overrides, objective.bag_size)
        if (kind := config.superposition.loss) != "mce":
            plain = bag_set_loop(logits, labels, objective.bag_size, kind)
        elif config.label_smoothing:
            plain = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.3)
        else:
            plain = multi_hot_loop(logits, labels, weights, objective.stride)
        plain.backward()
        assert loss.item() == pytest.approx(plain.item(), rel=1e-6)
        for name, weight in model.named_parameters():
            torch.testing.assert_close(gradients[name], weight.grad, rtol=1e-4, atol=1e-6)


def test_the_balance_loss_is_a_mean_over_sequences(words, tmp_path, monkeypatch):
    """It is in the gradient, not in the loss that is reported."""
    seen: list[dict[str, torch.Tensor]] = []
    step = ModelOptimizer.step

    def recording_step(self: ModelOptimizer, learning_rate: float) -> torch.Tensor:
        norm = step(self, learning_rate)
        named = self.model.module.named_parameters()
        seen.append({name: p.main_grad.clone() for name, p in named})
        return norm

    monkeypatch.setattr(ModelOptimizer, "step", recording_step)
    experts = 'model.experts={"count"=4, "per_token"=2, "feed_forward_size"=16, "balance_loss"=0.5}'
    config = standing_still(words, experts, "model.initial_deviation=0.2")
    train(config, tmp_path, progress=False)
    read_ids, read_labels, ids, labels = (
        torch.from_numpy(rows) for step in (0, 1) for rows in open_stream(config).batch(step)
    )
    with built(config) as (model, _):
        bagged = multi_hot_loop(model.eval()(read_ids.view(4, 8, 4)), read_labels, [1.0] * 4)
        assert read(tmp_path).metrics[0]["loss"] == pytest.approx(bagged.item(), rel=1e-5)
        of_routers: list[torch.Tensor] = []
        for layer in model.decoder.layers:
            layer.mlp.register_forward_pre_hook(
                lambda mlp, inputs: of_routers.append(
                    balance_loss(mlp.router.weight, config.model.experts, inputs[0])
                )
            )
        logits = model(NEXT_TOKEN.fold(ids))  # in which nothing is added of its own
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        (loss + sum(of_routers)).backward()
        assert read(tmp_path).metrics[1]["loss"] == pytest.approx(loss.item(), rel=1e-5)
        assert len(of_routers) == 2
        for name, weight in model.named_parameters():
            torch.testing.assert_close(seen[1][name], weight.grad, rtol=1e-4, atol=1e-6)


def test_only_superposed_steps_train_on_shuffled_targets(words):
    config = tiny(words, "superposition.shuffle_targets=true")
    with built(config) as (_, ranks):
        batches = StepBatches(config, plan_phases(config), ranks)
        for step in (0, 9, 10):
            (ids, labels), read_batch = batches(step), open_stream(config).batch(step)
            plain_ids, plain = map(torch.from_numpy, read_batch)
            assert torch.equal(ids, plain_ids)
            assert torch.equal(labels, plain) == (step == 10)
            bags, moved = (x[:, 3:-1].reshape(-1, 4).tolist() for x in (plain, labels))
            assert sorted(bags) == sorted(moved)


def balance_loss(weight: torch.Tensor, experts: Experts, x: torch.Tensor) -> torch.Tensor:
    """(l, b, d): what one layer adds, the balance per sequence (Switch Transformer)."""
    logits = x @ weight.T
    probabilities = logits.softmax(dim=-1)
    best = probabilities.topk(experts.per_token, dim=-1).indices
    balance = []
    for sequence in range(x.shape[1]):
        chosen = torch.bincount(best[:, sequence].flatten(), minlength=experts.count)
        share = chosen / chosen.sum()
        balance.append(experts.count * (share * probabilities[:, sequence].mean(dim=0)).sum())
    return experts.balance_loss * torch.stack(balance).mean()
