"""XGBoost's configuration files: how they are read, and what the names in them mean."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shanty.compat.xgboost_program import __main__
from shanty.compat.xgboost_program.__main__ import NEEDS, main
from shanty.compat.xgboost_program.configuration import (
    ConfigurationError,
    Setting,
    Settings,
    from_words,
    parse,
    read,
    settings_of,
    understand,
)
from shanty.launch.transport.rpc_client import bundle
from shanty.runtime.rank import import_hooks

MUSHROOM = """\
# General Parameters
booster = gbtree
objective=binary:logistic   # logistic regression
eta\t=\t1.0
gamma = 1.0
  max_depth = 3

num_round = 2
save_period = 0
data = "agaricus.txt.train?format=libsvm"
eval[test] = 'agaricus.txt.test?format=libsvm'#monitored
eval_train = 1
test:data = "my data/test.txt#cache"
eval_metric = "error"
eval_metric = logloss
"""


def meant(text: str, *words: str) -> Settings:
    return understand([*parse(text, "a.conf"), *from_words(words)])


def test_a_configuration() -> None:
    found = meant(MUSHROOM, "max_depth=6", "eval[test]=other.txt", "eval[more]=more.txt")
    assert found == Settings(
        data="agaricus.txt.train?format=libsvm",
        test="my data/test.txt#cache",
        evals={"test": "other.txt", "more": "more.txt"},
        eval_train=True,
        num_round=2,
        parameters=[
            ("booster", "gbtree"),
            ("objective", "binary:logistic"),
            ("eta", "1.0"),
            ("gamma", "1.0"),
            ("max_depth", "6"),
            ("eval_metric", "error"),
            ("eval_metric", "logloss"),
        ],
    )


RANKING = """\
booster_type = 0
objective="rank:pairwise"
bst:eta = 0.1
use_buffer = 0
dsplit = row
data = "mq2008.train"
model_out = NULL
ntree_limit = 0
"""


def test_a_configuration_of_the_oldest() -> None:
    found = meant(RANKING, "rabit_debug=1", "mock=0,1,1,0")
    assert found.parameters == [
        ("booster", "gbtree"),
        ("objective", "rank:pairwise"),
        ("eta", "0.1"),
    ]
    assert found.model_out == ""
    assert [note.split()[0] for note in found.notes] == [
        *("use_buffer", "dsplit", "rabit_debug", "mock"),
    ]


OLD = """\
data = x
parallel_option = 1
cache_opt = 1
prob_buffer_row = 1.0
max_row_perbatch = 100
test_flag = x
split_evaluator = elastic_net
enable_feature_grouping = 1
max_conflict_rate = 0
max_search_group = 100
"""


def test_parameters_that_are_gone_are_left_out_with_a_word() -> None:
    found = meant(OLD)
    names = [line.split()[0] for line in OLD.splitlines()[1:]]
    assert [note.partition(" is left out: ")[0] for note in found.notes] == names
    assert found.parameters == []


def test_other_tasks() -> None:
    pred = meant(MUSHROOM, "task=pred", "model_in=0002.model", "name_pred=stdout", "pred_margin=1")
    assert (pred.task, pred.model_in, pred.name_pred) == ("pred", "0002.model", "stdout")
    assert pred.pred_margin
    dump = meant("", "task=dump", "model_in=m", "fmap=f", "dump_stats=1", "dump_format=json")
    assert (dump.fmap, dump.dump_stats, dump.dump_format) == ("f", True, "json")
    assert meant("", "task=eval", "model_in=m", "eval[a]=b").evals == {"a": "b"}


# What is wrong, and how it is told. The file has the name a.conf.
WRONG = {
    "data = x\nmax_dept = 3": "a.conf:2: max_dept = 3: unknown parameter; did you",
    "data = x\nnum_rounds = 3": "did you mean num_round?",
    "qqqqqqq = 3": "validate_parameters=0 takes any name",
    "data = x\n\nmax_depth 3": "a.conf:3: 'max_depth 3' is not `name = value`",
    "= 3": "a.conf:1: '= 3' is not",
    "a = ": "a.conf:1: 'a =' has no value",
    "a = 1 2": "a.conf:1: 'a = 1 2' has no value, or its value needs quotes",
    "a = 'x": "a.conf:1:",
    "a = 'x' y": "a.conf:1:",
    "a = \"x' # ": "a.conf:1:",
    "a = #": "a.conf:1:",
    "num_round = 0": "a.conf:1: num_round = 0: it takes a whole number from 1 on",
    f"num_round = {'9' * 5000}": "it takes a whole number from 1 on",
    "num_round = 1.5": "it takes a whole number from 1 on",
    "save_period = -1": "it takes a whole number from 0 on",
    "eval_train = maybe": "a.conf:1: eval_train = maybe: it takes 0 or 1",
    "task = trian": "it takes one of train, pred, dump, eval; did you mean train?",
    "dump_format = xml": "it takes one of text, json, dot",
    "eval[] = x": "a.conf:1: eval[] = x: unknown parameter",
    "eta = 1": "a.conf: task = train: data is missing",
    "data = NULL": "data is missing",
    "task = pred\nmodel_in = m": "a.conf:1: task = pred: test:data is missing",
    "task = pred\ntest:data = t": "model_in is missing",
    "task = eval\nmodel_in = m": "eval[NAME] is missing",
    "data = x\nntree_limit = 5": "iteration_end to the number of rounds",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_told_with_its_line(text: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        meant(text)
    assert WRONG[text] in str(error.value)


@pytest.mark.parametrize("word", ["max_depth", "=3", "max_depth=", "10000"])
def test_words_of_the_command_line(word: str) -> None:
    with pytest.raises(ConfigurationError, match=r"the command line: .* is not name=value"):
        from_words(["eta=1", word])
    with pytest.raises(ConfigurationError, match="the command line: max_dept = 3: unknown"):
        meant("data = x", "max_dept=3")


def test_names_that_are_not_checked() -> None:
    found = meant("data = x\nmine = 1\nvalidate_parameters = 0")
    assert ("mine", "1") in found.parameters


def test_files_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"none.conf cannot be read: No such file"):
        read("none.conf")
    with pytest.raises(ConfigurationError, match=r"cannot be read: Is a directory"):
        read(str(tmp_path))
    (tmp_path / "a.conf").write_bytes(b"a = \xff\n")
    with pytest.raises(ConfigurationError, match="byte 4 is not UTF-8"):
        settings_of([str(tmp_path / "a.conf")])
    assert main(["none.conf", "eta=1"]) == 2
    assert capsys.readouterr().err.startswith("xgboost: none.conf cannot be read")


FILES = {
    "": ["./0010.model"],
    "num_round=2 model_dir=d": ["d/0002.model"],
    "num_round=5 save_period=2": ["./0002.model", "./0004.model", "./0005.model"],
    "num_round=5 save_period=2 model_out=m.json": ["./0002.model", "./0004.model", "m.json"],
    "num_round=4 save_period=2 model_out=m.json": ["./0002.model", "./0004.model"],
}


@pytest.mark.parametrize("words", FILES)
def test_where_models_go(words: str) -> None:
    found = meant("data = x", *words.split())
    every = found.save_period or found.num_round
    rounds = [r for r in range(1, found.num_round + 1) if r % every == 0 or r == found.num_round]
    assert [found.model_file(number) for number in rounds] == FILES[words]


UNWRITABLE = {
    "model_out=none/m.json": "none/m.json cannot be written: the folder none does not exist",
    "save_period=1 model_dir=none model_out=m": "the folder none does not exist",
    "task=pred test:data=x model_in=m name_pred=none/p": "none/p cannot be written",
    "task=dump model_in=m name_dump=none/d": "none/d cannot be written",
    "task=dump model_in=m name_dump=d": "",
    "task=pred test:data=x model_in=m name_pred=stdout": "",
    "task=eval eval[a]=x model_in=m name_pred=none/p": "",
    "save_period=1 model_out=none/m num_round=4": "",
}


@pytest.mark.parametrize("words", UNWRITABLE)
def test_what_cannot_be_written_is_told_before(words: str) -> None:
    found = meant("data = x", *words.split()).unwritable()
    assert (UNWRITABLE[words] in found) if UNWRITABLE[words] else not found


def test_a_model_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.conf").write_text("data = x\ntest:data = y\n")
    assert main([str(tmp_path / "a.conf"), "task=pred", "model_in=none.model"]) == 2
    assert capsys.readouterr().err == "xgboost: model_in = none.model: file not found\n"
    (tmp_path / "model").write_text("")
    found = meant("data = x", f"model_in={tmp_path / 'model'}", f"fmap={tmp_path / 'none'}")
    assert found.missing().startswith("fmap = ")
    assert not meant("data = x", f"model_in={tmp_path / 'model'}").missing()


def test_a_python_that_is_too_old_is_told_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert NEEDS == import_hooks._NEEDS
    monkeypatch.setattr(__main__, "NEEDS", (99, 0))
    assert main(["none.conf"]) == 1
    said = capsys.readouterr().err
    assert re.match(r"xgboost: this is Python 3\.\d+, and .* needs 99\.0 or later", said)
    assert "--python" in said


def test_it_travels_to_other_hosts() -> None:
    names = {name for name, _, _ in bundle().files}
    assert {"compat/xgboost_program/__main__.py", "xgboost/training.py"} <= names


def test_line_ends_and_a_mark_at_the_beginning(tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    path.write_bytes("\ufeffeta = 1\r\ngamma = 2\rdata = x".encode())
    assert [(name, value, where.rpartition(":")[2]) for name, value, where in read(str(path))] == [
        *(("eta", "1", "1"), ("gamma", "2", "2"), ("data", "x", "3")),
    ]
    assert path.read_bytes().count(b"\r") == 2  # XGBoost's own reader wrote the file anew


def test_what_starts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert said.count("usage: xgboost CONFIGURATION") == 2


PLAIN = st.text(
    st.characters(exclude_categories=("Z", "C"), exclude_characters="#\"'="), min_size=1
)
LINE = st.characters(exclude_categories=("Zl", "Zp", "C"))
SPACE = st.text(" \t", max_size=3)


@st.composite
def quoted(draw: st.DrawFn, no: str) -> tuple[str, str]:
    """A text, and it in quotes; without the characters `no`."""
    quote = draw(st.sampled_from("\"'"))
    text = draw(st.text(LINE, min_size=1).filter(lambda t: not set(t) & set(quote + no)))
    return text, quote + text + quote


NAMES = quoted("=") | PLAIN.map(lambda text: (text, text))
VALUES = quoted("") | PLAIN.map(lambda text: (text, text))


@given(st.data(), st.sampled_from(["\n", "\r\n", "\r"]), st.sampled_from(["", "last"]))
def test_what_is_written_is_read(data: st.DataObject, end: str, last: str) -> None:
    lines, expected = [], []
    for number in range(1, data.draw(st.integers(1, 7))):
        if data.draw(st.booleans()):
            (name, name_text), (value, value_text) = data.draw(NAMES), data.draw(VALUES)
            before, left, right, after = (data.draw(SPACE) for _ in range(4))
            comment = data.draw(st.sampled_from(["", "# x", "#'= \""]))
            lines.append(f"{before}{name_text}{left}={right}{value_text}{after}{comment}")
            expected.append(Setting(name, value, f"f:{number}"))
        else:
            lines.append(data.draw(SPACE) + data.draw(st.sampled_from(["", "# a = b", "#"])))
    text = end.join(lines)
    assert parse(text if last else text + end, "f") == expected


@given(st.text())
def test_any_text_is_read_or_refused_with_a_line_that_there_is(text: str) -> None:
    lines = len(re.split(r"\r\n|\r|\n", text))
    try:
        found = parse(text, "f")
    except ConfigurationError as error:
        said = re.match(r"f:(\d+): ", str(error))
        assert said
        assert 1 <= int(said[1]) <= lines
        return
    with contextlib.suppress(ConfigurationError):
        understand(found)
