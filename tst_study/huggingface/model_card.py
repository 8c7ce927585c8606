"""README.md of an export, from the run record: what the model is, what made it, how it does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tst_study.checkpoints.trained_run import TrainedRun
from tst_study.config import to_dict, to_toml
from tst_study.configuration.optimizer_kinds import OPTIMIZER_KINDS
from tst_study.configuration.superposition_setting import SuperpositionSetting
from tst_study.data.manifest import manifest_of, token_prefix
from tst_study.errors import UserError
from tst_study.huggingface.architecture import architecture_of
from tst_study.huggingface.tokenizer_files import RunTokenizer
from tst_study.run_record import Evaluation, RunRecord, measures
from tst_study.text import in_markdown

CITATION = """\
@article{peng2026token,
  title   = {Efficient Pre-Training with Token Superposition},
  author  = {Peng, B. and Gigant, T. and Quesnelle, J.},
  journal = {arXiv preprint arXiv:2605.06546},
  year    = {2026}
}"""


USE = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("…")
tokenizer = AutoTokenizer.from_pretrained("…")
ids = tokenizer("Once upon a time", return_tensors="pt").input_ids
model.generate(ids, max_new_tokens=40)"""
USE_WITHOUT_TOKENIZER = """\
import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("…")
ids = torch.tensor([[1, 2, 3]])
model.generate(ids, max_new_tokens=40)"""


def model_card(
    run: TrainedRun, record: RunRecord, dtype: str, tokenizer: RunTokenizer | None
) -> str:
    """Markdown, with the front matter that Hugging Face reads."""
    sections = [
        _front_matter(run),
        f"# {run.config.name}",
        _warnings(run, tokenizer),
        _summary(run, dtype),
        "## Use",
        f"```python\n{USE if tokenizer else USE_WITHOUT_TOKENIZER}\n```",
        "## How it was trained",
        _table(("", ""), _training(run, record)),
        "## Held-out loss",
        _losses(run, record),
        _tasks(run, record),
        "## Data",
        _data(run),
        "## Configuration",
        f"```toml\n{_config(run)}\n```",
        "## Cite",
        f"The method:\n\n```bibtex\n{CITATION}\n```\n\nand the software, `tst-study`, as its "
        "CITATION.cff says.",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _front_matter(run: TrainedRun) -> str:
    method = "token-superposition-training" if run.plan["superposed_steps"] else "baseline"
    return (
        "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n"
        f"- {method}\n- tst-study\n---"
    )


def _warnings(run: TrainedRun, tokenizer: RunTokenizer | None) -> str:
    lines = []
    if run.phase == "superposition":
        lines.append(
            f"**Not a language model.** This checkpoint is from inside the superposition phase "
            f"(step {run.step:,} of {run.plan['superposed_steps']:,} superposed ones): it was "
            "trained to predict bags of tokens from bags of tokens. Text generated from it and "
            "its next-token loss mean nothing; it is for research into the phase itself."
        )
    elif not run.annealed:
        steps = run.plan["steps"]
        stands = f"**Unfinished.** Step {run.step:,} of {steps:,}"
        if run.step == steps:
            stands = f"**Not annealed.** All {steps:,} steps are done"
        lines.append(
            f"{stands}; the learning rate was not annealed. Its loss is not to be compared with "
            "that of annealed models."
        )
    if tokenizer is None:
        lines.append(
            "There is no tokenizer: the corpus names none, since its words are numbers, or its "
            "token files came without one."
        )
    elif tokenizer.changed:
        lines.append(
            "The tokenizer's file put tokens around every text; the training text had none, so "
            "this copy does not."
        )
    return "\n\n".join(f"> {line}" for line in lines)


def _summary(run: TrainedRun, dtype: str) -> str:
    plan, parameters = run.plan, run.header["parameters"]
    kind = architecture_of(run.model).class_name
    active = parameters["active"]
    size = f"{parameters['total']:,} parameters"
    if active != parameters["total"]:
        size += f" ({active:,} active)"
    if plan["superposed_steps"]:
        method = f"Token Superposition Training ({_setting(run).label})"
    else:
        method = "next-token training from the first step on (a baseline)"
    return (
        f"An ordinary `{kind}` of {size}, {dtype}, trained by {method}. Nothing of superposition "
        "is left in the model: files, tensors and code are those of any model of its kind."
    )


def _training(run: TrainedRun, record: RunRecord) -> Iterator[tuple[str, str]]:
    plan, config, header = run.plan, run.config, run.header
    counters = run.counters()
    yield "study, run", f"{header['study']}, `{header['run_id']}` (seed {config.seed})"
    yield "fingerprint", f"`{header['fingerprint']}`"
    yield "steps", f"{run.step:,} of {plan['steps']:,}, of which superposed {_superposed(run)}"
    batch = f"{plan['sequences']:,} × {plan['sequence_length']:,} latent tokens"
    yield "batch, context", f"{batch}; a context of {plan['sequence_length']:,} tokens"
    yield "tokens read", f"{counters['raw_tokens']:,} raw, {counters['latent_tokens']:,} latent"
    yield "training FLOPs", f"{counters['flops']:.4g}"
    schedule, optimizer = config.schedule, config.optimizer
    yield (
        "optimizer",
        f"{OPTIMIZER_KINDS[optimizer.kind].label}, peak learning rate {optimizer.learning_rate:g}, "
        f"{schedule.kind}, warm-up {schedule.warmup_steps:,} steps, "
        f"{'annealed' if run.annealed else 'not annealed here'}",
    )
    row = next((row for row in reversed(record.metrics) if row["step"] <= run.step), None)
    if row is not None and record.segments:
        devices = record.segments[-1].get("devices") or {}
        on = f" on {devices['count']} × {devices['name']}" if devices else ""
        yield "training time", f"{row['training_seconds'] / 3600:.3g} hours{on}"
    commits = [(row.get("code") or {}).get("commit") for row in record.segments]
    known = dict.fromkeys(f"`{commit[:12]}`" for commit in commits if commit)
    if known:
        yield "code", ", ".join(known)


def _superposed(run: TrainedRun) -> str:
    steps = min(run.step, run.plan["superposed_steps"])
    return f"{steps:,} ({_setting(run).label})" if steps else "0"


def _setting(run: TrainedRun) -> SuperpositionSetting:
    return SuperpositionSetting.from_config(to_dict(run.config))


def _losses(run: TrainedRun, record: RunRecord) -> str:
    rows = [row for row in record.evals if row["step"] == run.step]
    if not rows:
        return f"The run was not evaluated after step {run.step:,}."
    head = ("held-out set", "nats per token", "95% interval", "bits per byte", "tokens")
    return _table(head, map(_loss, rows)) + (
        "\n\nNext-token loss. The interval is over held-out sequences of this one run; it says "
        "nothing of other seeds."
    )


def _loss(row: Evaluation) -> tuple[str, ...]:
    mean, margin = row["nats_per_token"], 1.96 * row["standard_error"]
    bits = "–" if row["bits_per_byte"] is None else f"{row['bits_per_byte']:.4f}"
    interval = f"{mean - margin:.4f} to {mean + margin:.4f}"
    return f"`{row['eval_set']}`", f"{mean:.4f}", interval, bits, f"{row['tokens']:,}"


def _tasks(run: TrainedRun, record: RunRecord) -> str:
    lines = []
    for row in (row for row in record.tasks if row["step"] == run.step):
        for name, value, error in measures(row["metrics"]):
            shown = f"{value:.4f}" + ("" if error is None else f" ± {1.96 * error:.4f}")
            lines.append((row["task"], f"`{row['data']}`", name, shown, f"{row['samples']:,}"))
    if not lines:
        return ""
    head = ("task", "data", "measure", "value ± 95%", "samples")
    return "## Evaluations\n\n" + _table(head, lines)


def _data(run: TrainedRun) -> str:
    lines = []
    corpora = zip(run.config.data.corpora, run.header["data"]["corpora"], strict=True)
    for corpus, known in corpora:
        counted = f"{known['tokens']:,}", f"{corpus.weight:g}"
        digest = f"`{known['fingerprint'][:16]}`"
        lines.append((Path(corpus.path).name, *counted, _licence(corpus.path), digest))
    read = run.counters()["raw_tokens"]
    total = run.header["unique_raw_tokens"]
    head = ("corpus", "tokens", "weight", "licence of the text", "fingerprint")
    return _table(head, lines) + f"\n\nText read over text there is: {read / total:.3g}."


def _config(run: TrainedRun) -> str:
    """Without what says how, not what, is computed: it is the last section."""
    return to_toml(run.config).partition("\n[execution")[0].strip()


def _licence(path: str) -> str:
    try:
        manifest = manifest_of(token_prefix(path))
    except UserError:
        return "not known here (the corpus is elsewhere)"
    return (manifest.licence if manifest else None) or "not stated"


def _table(head: tuple[str, ...], rows: Any) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(in_markdown, line))} |" for line in lines)
