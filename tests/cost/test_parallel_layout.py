"""A layout that cannot work is refused in one line, and `auto` finds one that does."""

import pytest

from tests.tiny_runs import MIXTURE, MUON, tiny
from tst_study.cost.auto_layout import resolve
from tst_study.cost.parallel_layout import check
from tst_study.errors import UserError
from tst_study.superposition.loss_kinds import BagLoss


class Whole(BagLoss):
    """A loss of one's own that a rank with a part of the vocabulary cannot compute."""

    is_sharded = False


WHOLE = f'superposition.loss={{"kind"="{__name__}:Whole"}}'
REFUSALS = [
    (3, ("tensor=2",), (), "does not divide the 3 processes"),
    (3, ("tensor=3",), (), "model.attention_heads = 4 does not divide"),
    (4, ("tensor=4",), (), "model.key_value_heads = 2 does not divide"),
    (2, ("sequence_parallel=true",), (), "one tensor rank"),
    (2, ("tensor=2", "sequence_parallel=true"), ("batch.sequence_length=7",), "sequence_length"),
    (2, ("tensor=2",), MIXTURE, "sequence_parallel = false"),
    (3, ("expert=3",), MIXTURE, "model.experts.count = 4"),
    (2, ("expert=2",), (), "needs a model with experts"),
    (2, ("expert=4",), MIXTURE, "does not divide the 2 processes"),
    (
        2,
        ("tensor=2", "sequence_parallel=true"),
        (*MIXTURE, "model.experts.feed_forward_size=12"),
        "feed_forward_size = 12 does not divide",
    ),
    (2, ("tensor=2",), (WHOLE,), "superposition.loss = 'Whole' needs the whole vocab"),
    (2, ("tensor=2",), MUON, 'optimizer.kind = "muon" needs whole matrices on a rank'),
    (2, ('optimizer="distributed"',), MUON, 'optimizer = "distributed": optimizer.kind = "muon"'),
]


def test_sequences_of_a_small_step_that_do_not_divide_by_the_ranks_are_refused(tmp_path):
    rival = ("superposition={}", "batch_warmup={parts = 4, step_ratio = 0.5}", "batch.sequences=4")
    with pytest.raises(UserError, match="batch_warmup: a small step's 1 sequences do not divide"):
        check(tiny(tmp_path, *rival), 2)


@pytest.mark.parametrize(("ranks", "layout", "others", "message"), REFUSALS, ids=str)
def test_refusals_name_key_reason_and_remedy(tmp_path, ranks, layout, others, message):
    overrides = [f"execution.parallel.{entry}" for entry in layout]
    refused = tiny(tmp_path, *others, *overrides)
    with pytest.raises(UserError) as raised:
        check(refused, ranks)
    text = str(raised.value)
    assert text.startswith("execution.parallel.")
    assert message in text
    assert "\n" not in text
    automatic = tiny(tmp_path, *others, 'execution.parallel="auto"', "batch.sequences=12")
    check(resolve(automatic, ranks, 10**9, on_gpu=False).config, ranks)
