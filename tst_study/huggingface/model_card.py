"""The model card of an export, its README.md, filled from the run's record.

The template is `model_card.md.jinja`. Anyone may have written a record, so each value that the
template inserts passes through `_plain`, which makes it harmless in Markdown. Two blocks are
inserted as they are: the front matter, whose texts have passed through `_plain` before, and the
configuration, in which TOML's quoting serves the same purpose.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tst_study.checkpoints.trained_run import TrainedRun
from tst_study.config.architecture import architecture_of
from tst_study.config.schema import to_dict, to_toml
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.data.manifest import Manifest, manifest_of, token_prefix
from tst_study.data.preparation.text_tokenizers import Tokenizer
from tst_study.errors import UserError
from tst_study.record.reader import RunRecord, measures
from tst_study.text import printable


def model_card(run: TrainedRun, record: RunRecord, dtype: str, tokenizer: Tokenizer | None) -> str:
    """Return the card in Markdown, with the front matter that Hugging Face reads.

    `dtype`: that of the exported weights, by name. `tokenizer`: that of the export, or None if it
    has none.
    """
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
    rows = [row for row in record.metrics if row["step"] <= run.step]
    codes = [row["code"] for row in record.segments if isinstance(row.get("code"), dict)]
    commits = dict.fromkeys(str(code["commit"])[:12] for code in codes if code.get("commit"))
    return templates.get_template("model_card.md.jinja").render(
        front_matter=Markup(_front_matter(run, record)),
        run=run,
        config=run.config,
        plan=run.header["plan"],
        header=run.header,
        step=run.step,
        counters=run.counters(),
        setting=SuperpositionSetting.from_config(to_dict(run.config)),
        tokenizer=tokenizer,
        architecture=architecture_of(run.model.model_dump()).class_name,
        dtype=dtype,
        hours=rows[-1]["training_seconds"] / 3600 if rows else None,
        devices=record.segments[-1].get("devices") if record.segments else None,
        commits=list(commits),
        losses=_at(run, record.evals),
        tasks=_at(run, record.tasks),
        measures=measures,
        corpora=zip(run.config.data.corpora, run.header["data"]["corpora"], manifests, strict=True),
        # The config without its last section, `execution`, which changes no result. TOML's quoting
        # keeps every string on the line of its key, so that no string can end the code block.
        toml=Markup(to_toml(run.config).partition("\n[execution")[0].strip()),
    )


def _plain(value: Any) -> str:
    """Reduce a value to one line of text without control characters, HTML, Markdown links, code
    spans or borders of table cells."""
    text = printable(" ".join(str(value).split()))
    return text.translate(str.maketrans("[]`|", "()'/", "\\")).replace("<", "&lt;")


def _front_matter(run: TrainedRun, record: RunRecord) -> str:
    """Return the YAML at the top of the card, made by Hugging Face's own class. Its `model-index`
    has the results of this checkpoint."""
    from huggingface_hub import ModelCardData

    setting = SuperpositionSetting.from_config(to_dict(run.config))
    method = "token-superposition-training" if setting.superposed_steps else setting.role
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=[method, "tst-study"],
        model_name=_plain(run.config.name),
        eval_results=list(_results(run, record)) or None,
    )
    return f"{data.to_yaml()}\n"


def _results(run: TrainedRun, record: RunRecord) -> Iterator[Any]:
    """Yield the measurements of this checkpoint in the form of the hub's `model-index`."""
    from huggingface_hub import EvalResult

    losses = ("nats_per_token", "bits_per_byte")
    measured = [
        (row["eval_set"], name, row[name]) for row in _at(run, record.evals) for name in losses
    ]
    for row in _at(run, record.tasks):
        data = row["data"] if row["task"] == "held_out" else row["task"]
        measured += [(data, name, value) for name, value, _ in measures(row["metrics"])]
    for data, name, value in measured:
        if value is not None:
            where = _plain(data)
            yield EvalResult("text-generation", where, where, _plain(name), value)


def _at(run: TrainedRun, rows: Iterable[Any]) -> list[Any]:
    """Return the rows that belong to the step of this checkpoint."""
    return [row for row in rows if row["step"] == run.step]


def _manifest(path: str) -> Manifest | None:
    """Read the manifest of a corpus; None if the corpus or its manifest cannot be read on this
    machine."""
    try:
        return manifest_of(token_prefix(path))
    except UserError:
        return None
