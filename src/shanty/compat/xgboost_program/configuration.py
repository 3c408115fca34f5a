"""Reads XGBoost's configuration files, and knows what the names in them mean.

A line is `name = value`, a comment, or empty:

    # a comment
    eta = 1.0                          # and another one
    data = "agaricus.txt?format=libsvm"
    'eval[my test]' = 'my test.txt'

A name or a value that contains a space, a quote of the other kind or a `#` is quoted. Beyond what
XGBoost's reader accepts, any value may contain `=`, and a lone `\\r` ends a line as well. Names are
the program's own, or those of training parameters.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from shanty.compat.xgboost_rabit.parameters import GONE
from shanty.runtime.suggestions import nearest

TASKS = ("train", "pred", "dump", "eval")
FORMATS = ("text", "json", "dot")

USAGE = """\
usage: xgboost CONFIGURATION [NAME=VALUE]…

A line of the file CONFIGURATION is `name = value`; words on the command line win over it.

  task          train (default), pred, dump, eval
  data          what to train on; test:data what to predict; eval[NAME] what to evaluate on
  num_round     rounds of boosting [10]; eval_train=1 evaluates on the training data, too
  model_in      the model to go on from, to predict with, to dump
  model_out     where the model goes [MODEL_DIR/0010.model]; save_period=N saves every N rounds
  model_dir     the folder of models [.]
  name_pred     the file of predictions [pred.txt], or stdout; pred_margin=1 gives margins
  name_dump     the file of the dump [dump.txt]; dump_format text, json or dot; dump_stats=1
  fmap          the names of features in a dump

All other names are XGBoost's training parameters."""

# Training parameters of XGBoost 3.2, as its documentation and its own configuration have them.
_TODAY = """
alpha aft_loss_distribution aft_loss_distribution_scale base_score booster colsample_bylevel
colsample_bynode colsample_bytree debug_synchronize default_direction device
disable_default_eval_metric eta eval_metric expectile_alpha extmem_single_page
fail_on_invalid_gpu_id feature_selector gamma grow_policy huber_slope interaction_constraints
lambda lambdarank_bias_norm lambdarank_normalization lambdarank_num_pair_per_sample
lambdarank_pair_method lambdarank_score_normalization lambdarank_unbiased learning_rate max_bin
max_cached_hist_node max_cat_threshold max_cat_to_onehot max_delta_step max_depth max_leaves
min_child_weight min_split_loss monotone_constraints multi_strategy n_jobs ndcg_exp_gain
normalize_type nthread num_class num_feature num_parallel_tree num_target objective one_drop
opt_dense_col process_type quantile_alpha random_state rate_drop refresh_leaf reg_alpha reg_lambda
sample_type sampling_method scale_pos_weight seed seed_per_iteration skip_drop sparse_threshold
subsample tolerance top_k tree_method tweedie_variance_power updater use_rmm validate_parameters
verbosity
"""
_OLD = "gpu_id num_pairsample silent sketch_eps"  # and those that are gone
KNOWN = frozenset([*_TODAY.split(), *_OLD.split(), *GONE])

# What rabit took from the command line, and the tracker put there.
_OF_RABIT = ("rabit_", "DMLC_", "mock")
_IGNORED = {
    "use_buffer": "data is not kept in a second file",
    "dsplit": "the ranks share the rows",
    # Training parameters of 0.4 to 1.2 that XGBoost no longer knows.
    "cache_opt": "nothing has taken its place",
    "enable_feature_grouping": "histograms have no groups of features",
    "max_conflict_rate": "histograms have no groups of features",
    "max_row_perbatch": "nothing has taken its place",
    "max_search_group": "histograms have no groups of features",
    "parallel_option": "nothing has taken its place",
    "prob_buffer_row": "nothing has taken its place",
    "split_evaluator": "constraints have parameters of their own",
    "test_flag": "nothing has taken its place",
}
_ALIASES = {
    "train_path": "data",
    "test_path": "test:data",
    "name_fmap": "fmap",
    "booster_type": "booster",
}
_DIGITS = 18  # of a number, at most: Python refuses thousands
_BOOSTERS = {"0": "gbtree", "1": "gblinear", "2": "gblinear"}  # what booster_type said
_ENDS = re.compile(r"\r\n|\r|\n")
_NAME = re.compile(r"""(?:(["'])((?:(?!\1)[^=])+)\1|([^#"'=\s]+))\s*=\s*""")
_VALUE = re.compile(r"""(?:(["'])((?:(?!\1).)+)\1|([^#"'\s]+))\s*(?:#.*)?""")


class ConfigurationError(ValueError):
    """A line or a setting that is wrong; names its place."""


class Setting(NamedTuple):
    """One name and its value, as texts; `where` is "FILE:LINE" or "the command line"."""

    name: str
    value: str
    where: str

    def wrong(self, what: str) -> ConfigurationError:
        """The error of this setting. what: what is wrong."""
        return ConfigurationError(f"{self.where}: {self.name} = {self.value}: {what}")


def read(path: str) -> list[Setting]:
    """The settings of a file, in their order; ConfigurationError says what is wrong."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not text: byte {error.start} is not UTF-8") from error
    return parse(text, path)


def parse(text: str, source: str) -> list[Setting]:
    """The settings in a text; `source` is its name in errors."""
    found = []
    for number, line in enumerate(_ENDS.split(text), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        where = f"{source}:{number}"
        name = _NAME.match(line)
        if name is None:
            raise ConfigurationError(f"{where}: {line!r} is not `name = value`")
        value = _VALUE.fullmatch(line, name.end())
        if value is None:
            raise ConfigurationError(f"{where}: {line!r} has no value, or its value needs quotes")
        found.append(Setting(name[2] or name[3], value[2] or value[3], where))
    return found


def from_words(words: Sequence[str]) -> list[Setting]:
    """The settings of words as `max_depth=4`, each in one word."""
    found = []
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals or not value:
            raise ConfigurationError(
                f"the command line: {word!r} is not name=value (one word, without spaces)"
            )
        found.append(Setting(name, value, "the command line"))
    return found


@dataclass
class Settings:
    """The settings of one call of the program; paths are "" where none is given.

    `evals` are the data sets to evaluate on, by name; `parameters` the training parameters, as
    texts, in which eval_metric may occur several times; `notes` names settings without effect.
    """

    task: str = "train"
    data: str = ""
    test: str = ""
    evals: dict[str, str] = field(default_factory=dict)
    eval_train: bool = False
    num_round: int = 10
    save_period: int = 0
    model_in: str = ""
    model_out: str = ""
    model_dir: str = "."
    name_pred: str = "pred.txt"
    pred_margin: bool = False
    iteration_begin: int = 0
    iteration_end: int = 0
    name_dump: str = "dump.txt"
    dump_format: str = "text"
    dump_stats: bool = False
    fmap: str = ""
    parameters: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def model_file(self, rounds: int) -> str:
        """The file for the model after this number of rounds."""
        by_period = self.save_period and rounds % self.save_period == 0
        if rounds == self.num_round and self.model_out and not by_period:
            return self.model_out
        return f"{self.model_dir or '.'}/{rounds:04d}.model"

    def missing(self) -> str:
        """Says which file is missing: the model, or the names of features; "" for none."""
        for name, file in (("model_in", self.model_in), ("fmap", self.fmap)):
            if file and not Path(file).is_file():
                return f"{name} = {file}: file not found"
        return ""

    def unwritable(self) -> str:
        """Says why a result cannot be written; "" if all can. Only rank 0 writes."""
        if self.task == "train":
            every = [self.save_period] if self.save_period else []
            files = [self.model_file(rounds) for rounds in (*every, self.num_round)]
        else:
            files = {"pred": [self.name_pred], "dump": [self.name_dump]}.get(self.task, [])
        for file in files:
            folder = Path(file).parent
            if file != "stdout" and not os.access(folder, os.W_OK):
                why = "cannot be written to" if folder.is_dir() else "does not exist"
                return f"{file} cannot be written: the folder {folder} {why}"
        return ""


def settings_of(words: Sequence[str]) -> Settings:
    """Settings of the words `CONFIGURATION [NAME=VALUE]…`; ConfigurationError for bad ones."""
    return understand([*read(words[0]), *from_words(words[1:])])


def understand(given: Sequence[Setting]) -> Settings:
    """Interprets settings; of one name, the last counts.

    ConfigurationError names a setting with a wrong value or an unknown name, and what is missing
    for the task.
    """
    settings = Settings()
    plain: dict[str, Setting] = {}
    metrics: list[tuple[str, str]] = []
    for each in given:
        name = _ALIASES.get(each.name, each.name.removeprefix("bst:"))
        if name in _OWN:
            value = _OWN[name](each)
            if name != "ntree_limit":
                setattr(settings, name.removesuffix(":data"), value)
        elif name.startswith("eval[") and name.endswith("]") and name != "eval[]":
            settings.evals[name[5:-1]] = each.value
        elif name in _IGNORED and each.value != "col":
            settings.notes.append(f"{each.name} is left out: {_IGNORED[name]}")
        elif name.startswith(_OF_RABIT):
            settings.notes.append(f"{each.name} is left out: rabit no longer exists")
        elif name == "eval_metric":
            metrics.append((name, each.value))
        else:
            plain[name] = each
    _check_names(plain)
    if plain.get("booster") and plain["booster"].name == "booster_type":
        number = plain["booster"]
        plain["booster"] = number._replace(value=_BOOSTERS.get(number.value, number.value))
    settings.parameters = [(name, each.value) for name, each in plain.items()] + metrics
    for name, value, tasks in (
        ("data", settings.data, ["train"]),
        ("test:data", settings.test, ["pred"]),
        ("eval[NAME]", settings.evals, ["eval"]),
        ("model_in", settings.model_in, ["pred", "eval", "dump"]),
    ):
        if settings.task in tasks and not value:
            where = given[-1].where.partition(":")[0] if given else "the configuration"
            last = [each for each in given if each.name == "task"][-1:]
            (task,) = last or [Setting("task", settings.task, where)]
            raise task.wrong(f"{name} is missing")
    return settings


def _check_names(plain: dict[str, Setting]) -> None:
    """All other names must be those of training parameters, unless validate_parameters=0."""
    free = plain.get("validate_parameters")
    if free is not None and free.value.lower() in ("0", "false"):
        return
    for name, each in plain.items():
        if name not in KNOWN:
            hint = nearest(name, [*KNOWN, *_OWN], "validate_parameters=0 takes any name")
            raise each.wrong(f"unknown parameter; {hint}")


def _text(each: Setting) -> str:
    return "" if each.value == "NULL" else each.value


def _number(each: Setting, least: int = 0) -> int:
    digits = each.value.strip().removeprefix("+")
    right = digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS
    if not right or int(digits) < least:
        raise each.wrong(f"it takes a whole number from {least} on")
    return int(digits)


def _no_limit(each: Setting) -> str:
    """`ntree_limit`, which counted trees; 0 means no limit."""
    if _number(each):
        raise each.wrong("it no longer exists: set iteration_end to the number of rounds")
    return "0"


def _truth(each: Setting) -> bool:
    words = {"1": True, "true": True, "0": False, "false": False}
    if each.value.lower() not in words:
        raise each.wrong("it takes 0 or 1")
    return words[each.value.lower()]


def _one_of(choices: Sequence[str]) -> Callable[[Setting], str]:
    def convert(each: Setting) -> str:
        if each.value not in choices:
            hint = nearest(each.value, choices)
            known = f"it takes one of {', '.join(choices)}"
            raise each.wrong(f"{known}; {hint}" if hint else known)
        return each.value

    return convert


# The program's own names, and what makes a value of the text.
_OWN: dict[str, Callable[[Setting], object]] = {
    **dict.fromkeys(["data", "test:data", "model_in", "model_out", "model_dir"], _text),
    **dict.fromkeys(["name_pred", "name_dump", "fmap"], _text),
    **dict.fromkeys(["eval_train", "pred_margin", "dump_stats"], _truth),
    **dict.fromkeys(["save_period", "iteration_begin", "iteration_end"], _number),
    "task": _one_of(TASKS),
    "num_round": partial(_number, least=1),
    "ntree_limit": _no_limit,
    "dump_format": _one_of(FORMATS),
}
