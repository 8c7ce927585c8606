"""The README.md of an export, filled from the run's record.

`model_card.md.jinja` has its text. A record may have been written by anyone, so each of its values
is made harmless where the template puts it in."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tst_study.checkpoints.trained_run import TrainedRun
from tst_study.config.architecture import architecture_of
from tst_study.config.schema import to_dict, to_toml
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.data.manifest import Manifest, manifest_of, token_prefix
from tst_study.errors import UserError
from tst_study.huggingface.tokenizer_files import RunTokenizer
from tst_study.record.reader import Evaluation, RunRecord, measures
from tst_study.text import printable


def model_card(
    run: TrainedRun, record: RunRecord, dtype: str, tokenizer: RunTokenizer | None
) -> str:
    """Write the card in Markdown, with the front matter that Hugging Face reads."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def harmless(value: Any) -> Markup:
        return value if isinstance(value, Markup) else Markup(_plain(value))

    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=harmless,
        trim_blocks=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    manifests = [_manifest(corpus.path) for corpus in run.config.data.corpora]
    counters, setting = run.counters(), SuperpositionSetting.from_config(to_dict(run.config))
    return templates.get_template("model_card.md.jinja").render(
        front_matter=Markup(_front_matter(run, record, manifests)),
        config=run.config,
        plan=run.plan,
        phase=run.phase,
        annealed=run.annealed,
        step=run.step,
        tokenizer=tokenizer,
        architecture=architecture_of(run.model).class_name,
        size=_size(run.header["parameters"]),
        dtype=dtype,
        method=f"Token Superposition Training ({setting.label})"
        if run.plan["superposed_steps"]
        else "next-token training from the first step on (a baseline)",
        training=list(_training(run, record, setting)),
        losses=[_loss(row) for row in _at(run, record.evals)],
        tasks=list(_tasks(run, record)),
        corpora=list(_corpora(run, manifests)),
        epochs=f"{counters['raw_tokens'] / run.header['unique_raw_tokens']:.3g}",
        # Without `execution`, the last section, which changes no result. TOML's quoting keeps every
        # text on its line, behind its key, so that none can end the block.
        toml=Markup(to_toml(run.config).partition("\n[execution")[0].strip()),
    )


def _plain(value: Any) -> str:
    """Make a text one line without control characters, HTML, links, code or cells of a table."""
    text = printable(" ".join(str(value).split()))
    return text.translate(str.maketrans("[]`|", "()'/", "\\")).replace("<", "&lt;")


def _front_matter(run: TrainedRun, record: RunRecord, manifests: Iterable[Manifest | None]) -> str:
    """Write YAML by Hugging Face's own class.

    It names the data sets of the hub among the corpora, and all that was measured (`model-index`).
    """
    from huggingface_hub import ModelCardData

    sources = [source.name for manifest in manifests if manifest for source in manifest.sources]
    of_hub = [re.match(r"hf://([\w.-]+/[\w.-]+)", name) for name in sources]
    datasets = dict.fromkeys(match[1] for match in of_hub if match)
    method = "token-superposition-training" if run.plan["superposed_steps"] else "baseline"
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=[method, "tst-study"],
        datasets=list(datasets) or None,
        model_name=_plain(run.config.name),
        eval_results=list(_results(run, record)) or None,
    )
    return f"{data.to_yaml()}\n"


def _results(run: TrainedRun, record: RunRecord) -> Iterator[Any]:
    """List the measurements of this checkpoint in the form of the hub's `model-index`."""
    from huggingface_hub import EvalResult

    losses = ("nats_per_token", "bits_per_byte")
    measured = [
        (row["eval_set"], name, row[name]) for row in _at(run, record.evals) for name in losses
    ]
    for row in _at(run, record.tasks):
        measured += [(row["task"], name, value) for name, value, _ in measures(row["metrics"])]
    for data, name, value in measured:
        if value is not None:
            where = _plain(data)
            yield EvalResult("text-generation", where, where, _plain(name), value)


def _at(run: TrainedRun, rows: Iterable[Any]) -> list[Any]:
    """Pick the rows of this checkpoint's step."""
    return [row for row in rows if row["step"] == run.step]


def _size(parameters: Mapping[str, int]) -> str:
    active = parameters["active"]
    more = f" ({active:,} active)" if active != parameters["total"] else ""
    return f"{parameters['total']:,} parameters{more}"


def _training(
    run: TrainedRun, record: RunRecord, setting: SuperpositionSetting
) -> Iterator[tuple[str, str]]:
    plan, header, counters = run.plan, run.header, run.counters()
    yield "study, run", f"{header['study']}, {header['run_id']} (seed {run.config.seed})"
    yield "fingerprint", header["fingerprint"]
    superposed = min(run.step, plan["superposed_steps"])
    how = f"{superposed:,} ({setting.label})" if superposed else "0"
    yield "steps", f"{run.step:,} of {plan['steps']:,}, of which superposed {how}"
    yield "tokens read", f"{counters['raw_tokens']:,} raw, {counters['latent_tokens']:,} latent"
    yield "training FLOPs", f"{counters['flops']:.4g}"
    row = next((row for row in reversed(record.metrics) if row["step"] <= run.step), None)
    if row is not None and record.segments:
        devices = record.segments[-1].get("devices")
        on = ""
        if isinstance(devices, dict) and {"count", "name"} <= devices.keys():
            on = f" on {devices['count']} × {devices['name']}"
        yield "training time", f"{row['training_seconds'] / 3600:.3g} hours{on}"
    codes = [row["code"] for row in record.segments if isinstance(row.get("code"), dict)]
    commits = dict.fromkeys(str(code["commit"])[:12] for code in codes if code.get("commit"))
    if commits:
        yield "code", ", ".join(commits)


def _loss(row: Evaluation) -> tuple[str, ...]:
    mean, margin = row["nats_per_token"], 1.96 * row["standard_error"]
    bits = "–" if row["bits_per_byte"] is None else f"{row['bits_per_byte']:.4f}"
    interval = f"{mean - margin:.4f} to {mean + margin:.4f}"
    return row["eval_set"], f"{mean:.4f}", interval, bits, f"{row['tokens']:,}"


def _tasks(run: TrainedRun, record: RunRecord) -> Iterator[tuple[str, ...]]:
    for row in _at(run, record.tasks):
        for name, value, error in measures(row["metrics"]):
            shown = f"{value:.4f}" + ("" if error is None else f" ± {1.96 * error:.4f}")
            yield row["task"], row["data"], name, shown, f"{row['samples']:,}"


def _corpora(run: TrainedRun, manifests: Iterable[Manifest | None]) -> Iterator[tuple[str, ...]]:
    recorded = run.header["data"]["corpora"]
    for corpus, known, manifest in zip(run.config.data.corpora, recorded, manifests, strict=True):
        licence = "not known here (the corpus is elsewhere)"
        if manifest is not None:
            licence = manifest.licence or "not stated"
        counted = f"{known['tokens']:,}", f"{corpus.weight:g}"
        yield Path(corpus.path).name, *counted, licence, known["fingerprint"][:16]


def _manifest(path: str) -> Manifest | None:
    """Read the manifest of a corpus; None where it is not on this machine."""
    try:
        return manifest_of(token_prefix(path))
    except UserError:
        return None
