"""Unrelated tokens share nothing, related ones what they share, and the published curve its law."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.data.token_files import write_token_file
from tst_study.analysis import published
from tst_study.analysis.fits.mutual_information import fit_decay, measure, mutual_information_answer
from tst_study.data.token_file import TokenFile
from tst_study.errors import UserError
from tst_study.superposition.weighting import mutual_information_weights

WORDS, COUNT, DOCUMENTS = 300, 200_000, 100
CHANCES = 1 / np.arange(1, WORDS + 1)
CHANCES /= CHANCES.sum()


def written(folder: Path, copied: float) -> Path:
    """Words of Zipf's law, each with probability `copied` that of two places before it."""
    random = np.random.default_rng(0)
    ids = random.choice(WORDS, COUNT, p=CHANCES)
    for i in np.flatnonzero(random.random(COUNT) < copied):
        ids[i] = ids[i - 2] if i >= 2 else ids[i]
    documents = np.array_split(ids.astype(np.uint16), DOCUMENTS)
    write_token_file(folder / "text", documents, np.dtype(np.uint16))
    return folder / "text"


def true_information(copied: float) -> float:
    joint = copied * np.diag(CHANCES) + (1 - copied) * np.outer(CHANCES, CHANCES)
    return float((joint * np.log(joint / np.outer(CHANCES, CHANCES))).sum())


def test_independent_tokens_have_none_though_a_count_finds_some(tmp_path):
    table = measure(TokenFile(written(tmp_path, 0.0)), [1, 2, 7])
    assert (table["plug_in"] > 0.1).all()
    assert table["mutual_information"].to_numpy() == pytest.approx(np.zeros(3), abs=0.004)


def test_what_is_copied_is_found_at_its_distance(tmp_path):
    table = measure(TokenFile(written(tmp_path, 0.3)), [1, 2, 4]).set_index("distance")
    assert table["mutual_information"][1] == pytest.approx(0.0, abs=0.01)
    assert table["mutual_information"][2] == pytest.approx(true_information(0.3), rel=0.05)
    assert table["mutual_information"][4] == pytest.approx(true_information(0.09), abs=0.02)


def test_a_count_of_pairs_is_that_of_pandas(tmp_path):
    prefix = written(tmp_path, 0.3)
    ids = np.fromfile(f"{prefix}.bin", dtype=np.uint16).reshape(DOCUMENTS, -1)
    pairs = pd.DataFrame({"x": ids[:, :-2].ravel(), "y": ids[:, 2:].ravel()})
    joint = pairs.value_counts(normalize=True)
    x, y = (pairs[name].value_counts(normalize=True) for name in "xy")
    product = x.loc[joint.index.get_level_values(0)].to_numpy() * (
        y.loc[joint.index.get_level_values(1)].to_numpy()
    )
    expected = float((joint.to_numpy() * np.log(joint.to_numpy() / product)).sum())
    assert measure(TokenFile(prefix), [2])["plug_in"].item() == pytest.approx(expected)


def test_the_published_curve_gives_the_printed_law_and_its_weights():
    curve = published.mutual_information()
    decay = fit_decay(curve["distance"].to_numpy(), curve["mutual_information"].to_numpy())
    numbers = (decay.constant, decay.amplitude, decay.exponent)
    assert numbers == pytest.approx((3.63, 1.35, -1.25), abs=0.006)
    defaults = mutual_information_weights.__kwdefaults__
    assert numbers == pytest.approx(tuple(defaults.values()), abs=0.001)


def test_distances_that_no_document_spans_are_left_out(tmp_path):
    prefix = written(tmp_path, 0.3)
    answer = mutual_information_answer(prefix, [1, 2, 3, 4, 6, 1999, 2000, 5000])
    (table,) = answer.tables.values()
    assert list(table["distance"]) == [1, 2, 3, 4, 6, 1999]
    assert "is chance" in answer.sentences[1]
    write_token_file(tmp_path / "short", [np.arange(4, dtype=np.uint16)] * 9, np.dtype(np.uint16))
    with pytest.raises(UserError, match="distances with positive values: the fit needs"):
        mutual_information_answer(tmp_path / "short")
