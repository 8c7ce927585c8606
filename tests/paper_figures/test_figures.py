"""The paper's figures and those it lacks: drawn, legible, traced, and the same bytes every time."""

import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.text import Text

from tests.analysis.made_runs import BOOKS, config, imported, write_pairs, write_run
from tst_study.analysis import published
from tst_study.analysis.tables.archive import add_to_archive
from tst_study.analysis.tables.source import read_tables
from tst_study.analysis.verdict.question import Arm, Question, add_questions, read_questions
from tst_study.errors import UserError
from tst_study.paper_figures import curves
from tst_study.paper_figures.build import build
from tst_study.paper_figures.catalogue import catalogue
from tst_study.paper_figures.drawing import Picture
from tst_study.paper_figures.paper.method import PLAN, shapes
from tst_study.paper_figures.sources import Sources
from tst_study.paper_figures.study.data_constrained import _short
from tst_study.paper_figures.style import mark_of

FILE = "published/final_loss_grid.csv"
CAMPAIGN = Path(__file__).parents[2] / "docs/records/campaign"


NO_RUNS = Sources(None)


def picture(name: str, runs: Path | None = None) -> Picture:
    return catalogue()[name].item(Sources(runs) if runs else NO_RUNS)


def test_the_same_inputs_give_the_same_bytes_in_another_process(tmp_path):
    """PNG, SVG, PDF and CSV, whatever the order in which a process hashes strings."""
    names = ["figure1", "figure4", "table4"]
    here = build(None, tmp_path / "here", only=names)
    program = "import sys; from tst_study.paper_figures.build import build\n"
    program += f"build(None, sys.argv[1], only={names!r})"
    command = [sys.executable, "-c", program, str(tmp_path / "there")]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": "7"})
    assert {path.suffix for path in here.written} >= {".png", ".svg", ".pdf", ".csv", ".json"}
    for path in here.written:
        assert path.read_bytes() == (tmp_path / "there" / path.name).read_bytes(), path.name


def test_a_trace_names_runs_published_files_and_fits(tmp_path):
    built = build(CAMPAIGN, tmp_path, only=["figure4"])
    trace = json.loads((tmp_path / "figure4.json").read_text("utf8"))
    assert len(trace["runs"]) == len(built.items[0].folders) >= 8
    (given,) = trace["published"]
    assert given == {"file": FILE, "sha256": published.fingerprints("final_loss_grid")[FILE]}
    fit = trace["fits"]["published, r = 0.3"]
    assert fit["low"] < fit["best"] < fit["high"]
    assert 5 < fit["best"] < 9
    assert "4 seeds" in trace["caption"]


def test_a_name_with_dollar_signs_is_no_formula(tmp_path):
    text = {"corpora": [{"path": "prepared/c4_$a_$b"}]}
    write_pairs(tmp_path / "runs", (3.5, 3.5), data=text)
    build(tmp_path / "runs", tmp_path / "to", only=["loss_curves"])
    assert "c4_$a_$b" in (tmp_path / "to/loss_curves.json").read_text("utf8")


def test_published_curves_are_drawn_point_for_point():
    for figure in (1, 3, 6, 9):
        data = picture(f"figure{figure}").data
        assert len(data) == len(published.curves(figure))
        assert set(data["source"]) == {"published"}


def test_the_drawing_of_the_method_is_what_training_folds():
    """Figure 2's boxes hold the tokens that the trainer's own fold gives each position."""
    torch = pytest.importorskip("torch")
    from tst_study.superposition import bag_inputs, bag_targets

    for phase, rows in shapes(PLAN).groupby("phase"):
        bag = PLAN.tokens_per_position(phase)
        text = torch.arange(PLAN.tokens_per_sequence(phase) + 1)
        reads = bag_inputs(text[None, :-1], bag)[0].tolist()
        predicts = bag_targets(text[None, 1:], bag)[0].tolist()
        assert [list(map(int, words.split())) for words in rows["reads"]] == reads
        known = [[token for token in tokens if token >= 0] for tokens in predicts]
        assert [list(map(int, words.split())) for words in rows["predicts"]] == known


def test_the_measured_half_shows_held_out_loss_with_its_interval(tmp_path):
    """Not the training loss at the end of a noisy curve, which the legend showed before."""
    write_pairs(tmp_path, *((3.5 + 0.01 * seed, 3.4 + 0.012 * seed) for seed in range(3)))
    item = picture("figure3", tmp_path)
    ends = item.data[item.data["quantity"] == "end"].set_index("label")["loss"]
    assert ends["baseline, 1,000 steps"] == pytest.approx(3.51)
    assert ends["TST, 1,000 steps"] == pytest.approx(3.412)
    said = " ".join(" ".join(text.get_text().split()) for text in item.figure().findobj(Text))
    assert "equal FLOPs (1,000 steps): gain +0.0980 [+0.0930, +0.1030]" in said
    assert "No match of equal loss or of equal data among the runs." in item.caption


def test_settings_of_fewer_seeds_stand_at_the_level_of_all_baselines(tmp_path):
    """The second seed's baseline is 0.2 higher, and s = 8 was not run with it."""
    write_pairs(tmp_path, (3.5, 3.4), (3.7, 3.6))
    write_run(tmp_path, config(0, 8, 0.2), 3.45)
    table, grid = (catalogue()[name].item(Sources(tmp_path)) for name in ("table1", "table4"))
    own = table.data.dropna(subset="loss_measured").set_index("bag_size")
    assert dict(own["loss_measured"]) == pytest.approx({1: 3.6, 4: 3.5, 8: 3.55})
    assert dict(own["seeds"]) == {1: 2, 4: 2, 8: 1}
    cells = grid.data.dropna(subset="measured_loss").set_index("bag_size")["measured_loss"]
    assert dict(cells) == pytest.approx({1: 3.6, 4: 3.5, 8: 3.55})


def test_measured_information_of_two_studies_is_shown_for_both(tmp_path):
    values = [{"distance": d, "mutual_information": 1 + d**-1.0} for d in range(1, 9)]
    content = json.dumps({"tables": {"Mutual information by distance": values}})
    folders = [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        folder.mkdir()
        (folder / "mutual_information.json").write_text(content)
    item = catalogue()["figure10"].item(Sources(folders))
    assert item.data.groupby("source").size().to_list() == [8, 8, 100]
    assert item.measured.count("C0 = 1.000, a = 1.000, k = −1.000") == 2
    for bad in (content[:20], content.replace("1.5", '"high"')):
        (folders[0] / "mutual_information-cut.json").write_text(bad)
        with pytest.raises(UserError, match=r"cut\.json: holds no measured curve"):
            picture("figure10", folders[0])


def test_settings_with_one_short_name_are_told_apart_below_a_text():
    labels = ["baseline", "s = 4, r = 0.3", "s = 4, r = 0.5", "s = 4, r = 0.3, output only"]
    names = ["baseline", "s = 4, r = 0.3", "s = 4, r = 0.5", "output only"]
    assert list(_short(labels).values()) == names


def test_an_optimum_is_held_against_published_ones_of_its_own_r(tmp_path):
    """At r = 0.6 the published optimum is 4.8, at r up to 0.4 it is 6 or more."""
    for seed in range(4):
        write_run(tmp_path, config(seed), 3.5)
        for s in (2, 3, 4, 6, 8, 12, 16):
            gain = 0.05 - 0.02 * math.log(s / 4.8) ** 2 + 1e-4 * ((s * 7 + seed * 3) % 5)
            write_run(tmp_path, config(seed, s, 0.6), 3.5 - gain)
    finding = picture("figure4", tmp_path).finding
    assert finding.verdict == "agrees", finding.measured


def test_of_ratios_with_equally_many_sizes_the_drawn_one_is_described(tmp_path):
    """Ratios that are rounded to one share their cell of the table."""
    write_run(tmp_path, config(steps=10_000), 3.5, log_every=5000)
    for size, ratio in ((2, 0.2), (2, 0.2004), (4, 0.2), (8, 0.2), (2, 0.4), (4, 0.4), (8, 0.4)):
        write_run(tmp_path, config(0, size, ratio, 10_000), 3.4, log_every=5000)
    assert "Optimum: r = 0.2:" in picture("figure4", tmp_path).measured
    assert catalogue()["table4"].item(Sources(tmp_path)) is not None


def test_a_measured_panel_at_the_papers_own_s_and_r_is_drawn_beside_it(tmp_path):
    """Though it lacks an arm that the paper has, and one of its arms logged bag losses alone."""
    write_run(tmp_path, config(), 3.5)
    for mode in ("full", "input_only"):
        values = {"bag_size": 4, "step_ratio": 0.5, "mode": mode}
        log = write_run(tmp_path, config(0, 4, 0.5, superposition=values), 3.4) / "metrics.jsonl"
    log.write_text("".join(line for line in log.open() if "next_token" not in line))
    drawn = picture("figure6", tmp_path).figure()
    said = [text.get_text().split(":")[0] for text in drawn.axes[1].get_legend().get_texts()]
    assert said == ["baseline", "both"]


def test_a_question_called_like_its_family_has_its_row(tmp_path):
    arms = [Arm(name=name, setting=name) for name in ("s = 4, r = 0.2", "baseline")]
    write_pairs(tmp_path, (3.5, 3.4))
    names = dict.fromkeys(("name", "family"), "against the baseline")
    add_questions(tmp_path, [Question(**names, arm=arms[0], against=arms[1])])
    shown = [text.get_text() for text in picture("overview", tmp_path).figure().axes[0].texts]
    assert shown == ["+0.100"]


def test_figure_7_calls_no_rate_best_at_which_a_seed_diverged(tmp_path):
    for seed in (0, 1):
        for rate, loss in ((1e-3, 3.55), (2e-3, 3.5)):
            write_run(tmp_path, config(seed, optimizer__learning_rate=rate), loss)
    write_run(tmp_path, config(0, optimizer__learning_rate=4e-3), 3.4)
    write_run(tmp_path, config(1, optimizer__learning_rate=4e-3), None, state="diverged")
    finding = picture("figure7", tmp_path).finding
    assert finding.measured.endswith("baseline best at 0.002")
    for rate in (1e-3, 2e-3):
        write_run(tmp_path, config(2, optimizer__learning_rate=rate), None, state="diverged")
    assert picture("figure7", tmp_path).title == "Figure 7. Learning-rate sweeps"


def test_marks_tell_bag_sizes_apart_without_colour():
    sizes = [mark_of(size, 0.25) for size in (2, 3, 4, 6, 8, 12, 16)]
    light = [np.dot([0.2126, 0.7152, 0.0722], to_rgb(mark.colour)) for mark in sizes]
    assert (np.diff(light) < -0.03).all()


def test_a_mean_curve_is_over_all_seeds_at_every_step_though_their_rows_differ(tmp_path):
    for seed, every in ((0, 50), (1, 70)):
        write_run(tmp_path, config(seed), 3.5, log_every=every)
    summary = Sources(tmp_path).summary
    table = summary.tables.curves
    table["loss"] = table["folder"].astype(str).str.contains("seed1").map({True: 4.0, False: 3.0})
    mean = curves.mean_curve(summary, "baseline", summary.tables.runs)
    inside = mean[mean["step"].between(70, 980)]
    assert len(inside) > 10
    assert inside["loss"].tolist() == pytest.approx([3.5] * len(inside))
    assert inside["high"].tolist() == pytest.approx([4.0] * len(inside))


def test_a_title_counts_a_result_once_and_none_on_a_generated_language():
    """The primary question stands among the lengths, too; four rows are of the language."""
    item = picture("effects", CAMPAIGN)
    assert (item.data["verdict"] == "better").sum() == 9
    assert item.title.startswith("39 results on natural text: 4 better, ")
    tables = read_tables(CAMPAIGN)
    made = Sources(tables.only(tables.runs["optimal_nats_per_token"].notna()))
    assert " on a generated language: " in catalogue()["effects"].item(made).title


def part_of(record: Path, names: str, to: Path) -> Path:
    """An archive of the runs whose names match, with all questions of the record."""
    tables = read_tables(record)
    add_to_archive(to, tables.only(tables.runs["name"].str.contains(names)))
    add_questions(to, read_questions(record))
    return to


def test_gains_over_training_need_intervals(tmp_path):
    sources = Sources(part_of(CAMPAIGN, "-(?:baseline|s4-r0.25).*-seed[0-4]$", tmp_path))
    assert catalogue()["gain_over_training"].item(sources) is None
    assert catalogue()["overview"].item(sources) is not None


def test_one_setting_at_several_lengths_has_a_panel_for_each(tmp_path):
    lengths = part_of(CAMPAIGN, "lengths-[12]0000-(?:baseline|s4-r0.25)", tmp_path)
    item = picture("gain_over_training", lengths)
    assert set(item.data["arm"]) == {"lengths: 10,000 steps", "lengths: 20,000 steps"}


def test_runs_without_curves_and_ratios_of_four_decimals_are_drawn(tmp_path):
    rows = pd.DataFrame({"seed": [0, 0, 1, 1, 2, 2], "bag_size": [1, 4] * 3})
    rows = rows.assign(
        params=1e8, tokens=1e9, steps=999, step_ratio=0.3003 * (rows["bag_size"] > 1)
    )
    rows["loss"] = 3.5 + 0.01 * rows["seed"] - 0.05 * (rows["bag_size"] > 1) + 1e-4 * rows.index**2
    archive = imported(tmp_path, pd.concat([rows, rows[rows["bag_size"] > 1].assign(bag_size=8)]))
    figure = picture("figure3", archive).figure()
    assert "training loss, marks: held-out" in figure.axes[1].get_ylabel()
    item = picture("figure4", archive)
    assert len(item.figure().axes[-1].lines) > 2
    write_pairs(tmp_path / "own", (3.5, 3.5))
    beside = catalogue()["loss_curves"].item(Sources([archive, tmp_path / "own"]))
    assert "(2 layers, hidden size 64, vocabulary 1,024)" in beside.caption
    next((tmp_path / "own").glob("s4*/metrics.jsonl")).write_text("")
    assert catalogue()["loss_curves"].item(Sources([tmp_path / "own"])) is None


def test_primary_answers_stand_under_their_studies_whatever_their_families_are_called(tmp_path):
    """A study with two such families names both, since intervals hold together under a heading."""
    plain, baseline = Arm(name="plain", setting="s = 4, r = 0.2"), Arm(name="b", setting="baseline")
    for seed, (study, families) in enumerate({"one": ["main"], "two": ["main", "other"]}.items()):
        for arm in ((1, 0.0), (4, 0.2)):
            write_run(tmp_path / study, config(seed, *arm), 3.5)
        asked = {"name": "plain", "arm": plain, "against": baseline, "primary": True}
        add_questions(tmp_path / study, [Question(family=one, **asked) for one in families])
    item = catalogue()["primary_answers"].item(Sources([tmp_path / "one", tmp_path / "two"]))
    assert item.title.startswith("Primary questions of 2 studies: ")
    assert catalogue()["primary_answers"].item(Sources(tmp_path / "two")) is None
    late = "against b, asked afterwards"
    assert [*item.data["heading"]] == [f"{of}, {late}" for of in ("one", "two: main", "two: other")]


def test_a_gain_of_zero_has_its_curve_and_baselines_without_seeds_all_count(tmp_path):
    record = read_tables(CAMPAIGN.parent / "what-does-the-work")
    kept = record.runs["name"].str.fullmatch("arms-20000-(baseline|s4-r0.25)-seed1[123]")
    add_to_archive(tmp_path, record.only(kept))
    questions = read_questions(CAMPAIGN.parent / "what-does-the-work")
    (asked,) = [one for one in questions if one.name == "superposition against baseline"]
    add_questions(tmp_path, [asked.model_copy(update={"primary": True})])
    item = picture("gain_over_training", tmp_path)
    assert item.title == "No arm ended ahead"
    assert item.figure().axes[0].lines
    rows = [{"loss": 3.8 + 0.1 * place, "bag_size": 1, "step_ratio": 0.0} for place in range(3)]
    rows += [{"loss": 3.8 + 0.08 * place, "bag_size": 4, "step_ratio": 0.3} for place in range(3)]
    table = pd.DataFrame(rows).assign(params=1e8, tokens=1e9, steps=1000, seed=np.nan)
    archive = imported(tmp_path / "unseeded", table)
    assert "NaN" not in picture("overview", archive).trace(Sources(archive).runs)
    assert "s = 4, r = 0.3, 3 seeds" in picture("figure3", archive).caption
    (group,) = Sources(archive).groups
    assert (len(group.baselines), group.level) == (3, pytest.approx(3.9))
    assert len(group.folders) == 6


def test_every_declared_arm_has_one_panel():
    """Two questions are about one arm here. Other lengths and sizes have baselines of their own."""
    sources = Sources(CAMPAIGN.parent / "tuned")
    item = catalogue()["gain_over_training"].item(sources)
    sizes = [f"output only, {size} million parameters" for size in ("0.23", "1.07")]
    arms = ["output only", "superposition, power law", "superposition", *sizes]
    assert list(item.data["arm"].unique()) == arms
    assert item.title.startswith("2 of 3 arms that ended ahead took the lead in the second half")
    used = sources.runs.set_index("folder").loc[list(item.folders)]
    assert not used["name"].str.contains("pilot").any()
    judged = sources.answers.set_index("name")
    drawn = item.data.groupby("arm").last()
    for end in ("low", "high"):  # the interval that holds jointly with the family's other one
        assert drawn[end][sizes[1]] == pytest.approx(judged[end][sizes[1]], abs=2e-5)


def test_fresh_texts_of_two_sizes_are_not_called_repeated(tmp_path):
    """Where one is, runs of another weight decay take no part."""
    for tokens, decay in itertools.product((20_000_000, 50_000_000, 20_000), (0.1, 0.2)):
        assert decay > 0.1 or picture("data_constrained", tmp_path) is None
        data = {**BOOKS, "corpora": [{"fingerprint": f"{tokens:064d}", "weight": 1.0}]}
        data["corpora"][0]["tokens"] = tokens
        for size in (1, 4):
            run = config(0, size, 0.2 * (size > 1), optimizer__weight_decay=decay)
            write_run(tmp_path, run, 3.5, data=data)
    runs, used = Sources(tmp_path).runs, picture("data_constrained", tmp_path).folders
    assert runs["family"][runs["folder"].isin(used)].nunique() == 3


def test_no_multiplier_is_drawn_of_an_arm_that_is_unstable(tmp_path):
    for seed, steps in itertools.product(range(3), (1000, 2000)):
        loss = 3.5 - steps / 1e4 + 0.01 * seed
        write_run(tmp_path, config(seed, steps=steps), loss)
        write_run(tmp_path, config(seed, 4, 0.2, steps), loss - 0.05 - 0.001 * seed)
    assert picture("loss_against_compute", tmp_path).folders
    for seed, steps in itertools.product((3, 4), (1000, 2000)):
        write_run(tmp_path, config(seed, 4, 0.2, steps), None, state="diverged")
    assert not picture("loss_against_compute", tmp_path).folders
    assert ", unstable" in picture("figure3", tmp_path).finding.measured
