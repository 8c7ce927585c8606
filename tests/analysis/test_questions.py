"""Every question is asked the same way, and what cannot be answered is a plain sentence."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from tests.analysis.made_runs import config, write_run, write_study
from tst_study import analysis
from tst_study.analysis.answer import Answer, table_lines
from tst_study.analysis.questions import QUESTIONS, ask
from tst_study.command_line import program
from tst_study.errors import UserError
from tst_study.text import fitted
from tst_study.waiting import waiting


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("study"))


asked = cache(ask)
OF_RUNS = {"comparison", "chinchilla"}
"""The paper's numbers answer none of these."""


@pytest.mark.parametrize("question", sorted(set(QUESTIONS) - OF_RUNS - {"law"}))
def test_each_question_is_answered_of_the_published_numbers(question):
    answer = ask(question, of_published=True)
    assert all(name.startswith("published/") for name in answer.inputs)
    assert all(len(mark) == 64 for mark in answer.inputs.values())
    assert len(answer.lines()) > 3
    if question == "compute":  # which takes seconds
        (table,) = (rows for title, rows in answer.tables.items() if "multiplier" in title)
        at_270m = table[table["setting"] == "s = 6, r = 0.3"]
        assert at_270m["multiplier"].between(2.0, 2.7).all()


@pytest.mark.parametrize(
    ("question", "options", "complaint"),
    [
        ("bagsize", {}, "did you mean 'bag-size'?"),
        ("law", {}, "name --runs DIR or --published"),
        ("law", {"of_published": True, "at": "270M"}, "--at '270M': give params,tokens"),
        ("matched", {"of_published": True, "at": "1,2"}, "only by law"),
        ("law", {"of_published": True, "huber": 0.01}, "only by chinchilla"),
        ("chinchilla", {"of_published": True}, "needs --runs"),
        ("law", {"runs": Path("x"), "of_published": True}, "one of the two"),
        ("mutual-information", {}, "name --tokens PREFIX or --published"),
        ("matched", {"runs": Path("nowhere")}, "nowhere: no such folder"),
    ],
)
def test_a_question_asked_wrongly_is_told_how(question, options, complaint):
    with pytest.raises(UserError, match=complaint):
        ask(question, **options)  # type: ignore[arg-type]


def test_runs_that_allow_no_answer_say_what_is_missing(tmp_path):
    write_run(tmp_path, config(0), 3.5)
    for question, complaint in (
        ("matched", "no finished superposed run"),
        ("bag-size", "four or more s"),
        ("law", "no superposed run has a finished baseline"),
    ):
        with pytest.raises(UserError, match=complaint):
            ask(question, tmp_path)


def test_a_law_that_the_runs_do_not_allow_is_a_sentence(study):
    answer = ask("law", study)
    assert answer.sentences
    assert all("no law: " in sentence for sentence in answer.sentences)


def test_the_package_lists_what_it_offers():
    assert dir(analysis) == sorted(analysis.__all__)
    assert all(callable(getattr(analysis, name)) for name in dir(analysis))


def test_tables_are_aligned_and_what_is_missing_is_a_dash():
    lines = table_lines(pd.DataFrame({"loss_at": [3.25, None], "name": ["a", "long"]}))
    assert lines == ["loss at  name", " 3.2500  a", "      –  long"]
    assert table_lines(pd.DataFrame({"gain": [-0.25], "steps": [-3]}))[1] == "−0.2500     −3"
    assert table_lines(pd.DataFrame()) == ["(none)"]
    row = {"best": 9.16094, "low": 8.12, "high": 10.31, "seeds": 3.0}
    lines = table_lines(pd.DataFrame([row, dict.fromkeys(row)]))
    assert lines[1].split() == ["9.2", "8.1", "10.3", "3"]  # as many digits as the interval bears


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("question", ["comparison", "matched", "bag-size", "law", "compute"])
def test_an_answer_fits_the_terminal_and_cuts_no_word(question, width, study, monkeypatch):
    """`str` shows the same as the command."""
    monkeypatch.setenv("COLUMNS", str(width))
    answer = asked(question, study)
    written, shown = json.loads(answer.to_json()), str(answer).splitlines()
    assert (written["question"], len(written["inputs"])) == (question, 23)
    assert written["tables"] or written["sentences"]
    assert max(map(len, shown)) <= width
    whole = "Left out for the width: --json has all columns. ".join(answer.lines())
    for word in " ".join(shown).replace(",", " ").replace(";", " ").split():
        assert word in whole, word
    command = CliRunner().invoke(program(), ["analyse", question, "--runs", str(study)])
    assert command.stdout.splitlines() == shown


def test_a_long_name_keeps_its_ends_on_a_narrow_terminal():
    name = "arms-20000-s4-r0.25-power_law-input_only-seed12"
    rows = [["run", "gain"], [name, "0.1"]]
    assert fitted(rows, 80)[0][1].split()[0] == name
    (_, line), _ = fitted(rows, 40)
    assert line.startswith("arms-")
    assert line.split()[0].endswith("-seed12")
    assert len(line) <= 40


def test_a_command_says_what_it_waits_for(capsys):
    said = ""
    with waiting("reading the logs"):
        while not said:  # as long as it takes
            said = capsys.readouterr().err
    assert said + capsys.readouterr().err == "reading the logs …\n"


def test_numbers_that_json_cannot_hold_become_null():
    table = pd.DataFrame({"x": [float("nan"), 1.0], "y": [10**22, 1]})
    rows = json.loads(Answer("q", {"t": table}, (), {}).to_json())["tables"]["t"]
    assert rows == [{"x": None, "y": 10**22}, {"x": 1.0, "y": 1}]


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_what_a_run_says_of_itself_never_steers_the_terminal(form, tmp_path):
    folder = write_run(tmp_path, config(0), 3.5, state="diverged")
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps({**status, "message": "\x1b[2J\x9b2J"}))
    shown = CliRunner().invoke(program(), ["analyse", "--runs", str(tmp_path), *form]).stdout
    assert "[2J" in shown
    assert not {"\x1b", "\x9b"} & set(shown)


def test_folders_named_one_after_the_other_are_read_together(tmp_path):
    named = []
    for bag_size, loss in ((1, 3.5), (4, 3.4)):
        named += ["--runs", str(tmp_path / f"s{bag_size}")]
        write_run(tmp_path / f"s{bag_size}", config(bag_size=bag_size, step_ratio=0.25), loss)
    said = CliRunner().invoke(program(), ["analyse", *named])
    assert "1 setting against the baseline" in said.output


def test_each_held_out_text_has_laws_of_its_own_name(tmp_path):
    for seed, eval_set in enumerate(("validation-eeeeeeeeeeeeeeee", "validation-ffffffffffffffff")):
        write_run(tmp_path, config(seed), 3.5, eval_set=eval_set)
    said = ask("compute", tmp_path).sentences
    assert len(set(said)) == len(said) == 2


def test_curves_over_bag_size_are_of_one_held_out_text(tmp_path):
    texts = {"validation-eeeeeeeeeeeeeeee": 3, "validation-ffffffffffffffff": 10}
    for (text, best), steps in zip(texts.items(), (0, 10), strict=True):
        for seed in (steps, steps + 1, steps + 2):
            write_run(tmp_path, config(seed), 3.5, eval_set=text)
            for s in (2, 3, 4, 6, 8, 12, 16):
                gain = 0.05 - 0.02 * np.log(s / best) ** 2 + 1e-4 * ((s + seed) % 3)
                write_run(tmp_path, config(seed, s, 0.2), 3.5 - gain, eval_set=text)
    table = ask("bag-size", tmp_path).tables["Best s (both forms, all values)"]
    found = dict(zip(table["size"].str[-4:], table["best"].astype(float), strict=True))
    assert found == {"eeee": pytest.approx(3, rel=0.2), "ffff": pytest.approx(10, rel=0.2)}
