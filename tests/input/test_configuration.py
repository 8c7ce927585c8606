"""Bad configurations: one line with the key, the value and the problem."""

import contextlib
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import example
from tests.input.answers import refusal
from tst_study.config import schema as config
from tst_study.errors import UserError

OTHERWISE = {
    # What is a word, a list or nothing is asked below, with its own lines.
    "superposition.weighting", "data.corpora", "execution.parallel", "execution.keep_steps",
    "model.experts",
}  # fmt: skip
TOP = config.to_dict(example())
SECTIONS = [key for key, value in TOP.items() if isinstance(value, dict)]
INNER = {f"{section}.{key}" for section in SECTIONS for key in TOP[section]}
KEYS = sorted({*TOP, *INNER} - {*SECTIONS, *OTHERWISE})
OF_NO_KIND = ["[[]]", "{x = 1}", "-1", "nan", "1e400"]
BEYOND = {
    "0": "model.layers model.rope_theta superposition.bag_size data.validation_tokens "
    "schedule.steps batch.sequences optimizer.learning_rate optimizer.epsilon "
    "numerics.divergence_loss execution.micro_batch execution.threads execution.log_every "
    "execution.keep_checkpoints",
    "1": "model.vocabulary_size model.tied_embeddings batch.sequence_length model.experts data",
    "1.0": "optimizer.beta1 optimizer.beta2 execution",
    "1.5": "model.layers superposition.step_ratio schedule.decay_ratio data.corpora",
    "true": "model.layers optimizer.learning_rate seed execution.keep_steps model",
    "odd": "model.layers superposition.mode superposition.loss superposition.optimizer_at_switch "
    "optimizer.kind schedule.kind numerics.dtype role execution.device "
    "execution.parallel execution.track",
    "1000000000000": "model.layers model.hidden_size model.vocabulary_size superposition.bag_size "
    "batch.sequences batch.sequence_length execution.threads execution.timeout_seconds",
    "99999999999999999999": "model.layers schedule.steps seed data_seed",
}


@pytest.mark.parametrize("value", [*OF_NO_KIND, *BEYOND])
def test_a_value_that_a_key_cannot_have_is_named_with_it(place, value):
    for key in BEYOND[value].split() if value in BEYOND else KEYS:
        with pytest.raises(UserError, match=re.escape(f"run.toml: {key}")):
            config.load(place / "run.toml", [f"{key}={value}"])


OVERRIDES = [
    ("model.preset='270'", "model.preset: '270' is not known; did you mean '270m'?"),
    ("model.head_size=7", "model.head_size: 7: should be a multiple of 2"),
    ("model.key_value_heads=5", "model: attention_heads = 1 is not a multiple of"),
    ("model.hiden_size=64", "model.hiden_size: unknown key; did you mean model.hidden_size?"),
    ("bag_size=4", "bag_size: unknown key; did you mean superposition.bag_size?"),
    ("steps=9", "steps: unknown key; did you mean superposition.steps or schedule.steps?"),
    ("execution.compile=1", "execution.compile: 1: should be 'auto' or true or false"),
    ("execution.parallel=2", "execution.parallel: 2: should be 'auto' or a table, such as {key"),
    ("execution.parallel.tensr=2", "tensr: unknown key; did you mean execution.parallel.tensor?"),
    ("superposition={bag_size=4, mode='input_only', loss='hinge'}", "mode = 'input_only'"),
    (
        "model.experts={count=2, per_token=4, feed_forward_size=8}",
        "model.experts: per_token = 4 is more than count = 2",
    ),
    (
        "superposition={bag_size=4, mode='output_only', shuffle_targets=true}",
        "shuffle_targets has no meaning with mode = 'output_only'",
    ),
    ("schedule.warmup_steps=91", "warmup_steps = 91"),
    ("batch_warmup={parts=1, step_ratio=1}", "batch_warmup.parts: 1: should be greater than or"),
    ("batch_warmup={parts=3, step_ratio=1}", "batch_warmup and superposition are both set"),
    ("superposition.steps=101", "superposition: steps and step_ratio are both set"),
    ("superposition.weighting='linear'", "superposition.weighting: 'linear': should be 'uniform'"),
    ("model.experts={count=4, per_token=1, feed_forward_size=8}", "per_token = 1 leaves"),
    ("model.experts={count=4, per_token=2, feed_forward_size=9}", "must be multiples of 4"),
    ("superposition.weighting=[1.0]", "superposition: weighting has 1 numbers; bag_size 4 needs"),
    ("data.corpora=[]", "data.corpora: should not be empty"),
    ("schedule.stop_after=100", "schedule: stop_after = 100 is not before steps = 100"),
    ("study='../../x'", "study: '../../x': a name has at most 100 letters"),
    ('name="\\u001b[31m"', "name: '\\x1b[31m': a name has at most 100 letters"),
    ("execution.micro_batch=3", "execution.micro_batch = 3 does not divide the 16 sequences"),
    ("execution.fork_from={folder='x'}", "execution.fork_from.step: missing"),
    ("model", "--set model: write it as section.key=value"),
    ("label_smoothing={epsilon=0.1, first_step=9, last_step=3}", "first_step = 9 lies after 3"),
    ("seed=07:32:00", "seed: '07:32:00': should be a valid integer"),
    (f"{'x' * 100_000}=3", "unknown key"),
    (f"seed='{'9' * 5000}'", "seed: '99999999"),
]  # fmt: skip


@pytest.mark.parametrize(("override", "expected"), OVERRIDES, ids=range(len(OVERRIDES)))
def test_a_bad_override_is_named(place, override, expected):
    said = refusal(["train", "run.toml", "--dry-run", "--set", override], place)
    assert expected in said


FILES = {
    "nothing": (b"", "run.toml: model, data, batch, optimizer, schedule: missing; give them"),
    "not UTF-8": (b"seed = '\xff'", "run.toml: not valid TOML: "),
    "an unknown section": (
        b"\xef\xbb\xbf[modle]\nx = 1",
        "modle: unknown key; did you mean model?",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_configuration_is_named(tmp_path, name):
    content, expected = FILES[name]
    (tmp_path / "run.toml").write_bytes(content)
    assert expected in refusal(["train", "run.toml", "--dry-run"], tmp_path)


TIMES = st.dates() | st.times() | st.datetimes()
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | TIMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300)
@given(key=st.sampled_from(KEYS) | st.text(max_size=20), value=VALUES)
def test_whatever_a_key_holds_it_is_a_configuration_or_a_line(key, value):
    values = config.to_dict(example())
    section = values
    *sections, last = key.split(".")
    for name in sections:
        inner = section.get(name)
        section[name] = inner if isinstance(inner, dict) else {}
        section = section[name]
    section[last] = value
    with contextlib.suppress(UserError):
        taken = config.from_dict(values)
        assert config.from_dict(config.to_dict(taken)) == taken


@settings(max_examples=300)
@given(st.text(max_size=60) | st.tuples(st.sampled_from(KEYS), st.text(max_size=40)).map("=".join))
def test_whatever_is_given_to_set_is_a_configuration_or_a_line(text):
    values = config.to_dict(example())
    with contextlib.suppress(UserError):
        config.apply_override(values, text)
        config.from_dict(values)
