"""Translates old training parameters to those of today's XGBoost; some have lost their meaning.

Pure: no XGBoost, no MPI. The facts come from XGBoost's release notes from 1.0 to 3.2, and from what
XGBoost 3.2 does with each parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

# Parameters that are dropped, and why.
GONE = {
    "debug_verbose": "verbosity=3 prints most",
    "deterministic_histogram": "histograms are always deterministic",
    "dsplit": "rows are what is split",
    "enable_experimental_json_serialization": "it is what is done",
    "fix_list_weight": "objectives for ranking have their own weights",
    "gpu_batch_nrows": "nothing has taken its place",
    "lambda_bias": "nothing has taken its place",
    "n_gpus": "each rank uses one",
    "num_pbuffer": "it is known without",
    "num_roots": "nothing has taken its place",
    "predictor": "device decides",
    "single_precision_histogram": "nothing has taken its place",
    "size_leaf_vector": "nothing has taken its place",
    "sketch_ratio": "max_bin decides",
    "use_label_encoder": "labels have to be 0, 1, 2, …",
}

# What grows the trees, by the name of a tree method or of an updater.
_METHODS = {
    "gpu_hist": "hist",
    "gpu_exact": "hist",
    "grow_gpu": "hist",
    "grow_gpu_hist": "hist",
    "grow_fast_histmaker": "hist",
    "grow_local_histmaker": "approx",
    "grow_skmaker": "approx",
    "distcol": "approx",
}
_ON_GPU = {"gpu_hist", "gpu_exact", "grow_gpu", "grow_gpu_hist"}
_EXACT = {"exact", "grow_colmaker"}
_OBJECTIVES = {"reg:linear": "reg:squarederror"}


def modern(params: Mapping[str, object] | Iterable[tuple[str, object]], ranks: int) -> Modern:
    """`params` with their current names. ranks: the number of ranks that train.

    They keep their order; a name may occur more than once, as `eval_metric` does. A value that is
    given by its current name is never replaced. ValueError names what is not supported.
    """
    items = params.items() if isinstance(params, Mapping) else params
    old = [(name.removeprefix("bst:"), value) for name, value in items]
    made = Modern(dict(old), ranks)
    for name, value in old:
        if value is None or name not in _RULES:
            made.keep(name, value)
        else:
            _RULES[name](made, name, value)
    made.settle_device()
    return made


class Modern:
    """Parameters as today's XGBoost takes them (`pairs`), and `notes` on what has been changed."""

    def __init__(self, given: Mapping[str, object], ranks: int) -> None:
        self.pairs: list[tuple[str, object]] = []
        self.notes: list[str] = []  # "silent=1 is now verbosity=0"
        self.given = given
        self.ranks = ranks
        self.on_gpu: list[str] = []  # the words that ask for a GPU

    def keep(self, name: str, value: object) -> None:
        """Takes a parameter as it is."""
        self.pairs.append((name, value))

    def becomes(self, name: str, value: object, *new: tuple[str, object], why: str = "") -> None:
        """Puts `new` in place of name=value, except for what is given already."""
        self.pairs += [pair for pair in new if pair[0] == name or pair[0] not in self.given]
        now = ", ".join(f"{new_name}={new_value}" for new_name, new_value in new)
        self.notes.append(f"{name}={value} is now {now}{why}")

    def drop(self, name: str, why: str) -> None:
        """Leaves a parameter out."""
        self.notes.append(f"{name} no longer exists: {why}")

    def settle_device(self) -> None:
        """Sets the device, after all parameters; `gpu_id` counts only if a GPU is used."""
        number = self.given.get("gpu_id")
        if self.on_gpu and "device" not in self.given and str(number) != "-1":
            device = "cuda" if number is None else f"cuda:{number}"
            self.keep("device", device)
            words = [*self.on_gpu, *([] if number is None else [f"gpu_id={number}"])]
            self.notes.append(f"{', '.join(words)}: the GPU is now device={device}")
        elif number is not None:
            self.drop("gpu_id", "device chooses the GPU, and no parameter asks for one")


def _silent(state: Modern, name: str, value: object) -> None:
    if str(value).lower() not in ("0", "false", "0.0", ""):
        state.becomes(name, value, ("verbosity", 0))
    else:
        state.drop(f"{name}={value}", "verbosity=1 is what it was, and the default")


def _objective(state: Modern, name: str, value: object) -> None:
    word = str(value)
    plain = word.removeprefix("gpu:")
    if plain != word:
        state.on_gpu.append(f"{name}={word}")
    today = _OBJECTIVES.get(plain, plain)
    if today == word:
        state.keep(name, value)
    else:
        state.becomes(name, word, (name, today))


def _tree_method(state: Modern, name: str, value: object) -> None:
    words = [word.strip() for word in str(value).split(",")]  # updaters may be several
    if set(words) & _ON_GPU:
        state.on_gpu.append(f"{name}={value}")
    for word in words:
        if word in _METHODS:
            state.becomes(name, value, ("tree_method", _METHODS[word]))
            return
        if word in _EXACT and state.ranks > 1:
            why = ": one process only can be exact"
            state.becomes(name, value, ("tree_method", "approx"), why=why)
            return
    state.keep(name, value)


def _sketch_eps(state: Modern, name: str, value: object) -> None:
    eps = float(str(value))
    if state.given.get("tree_method") == "approx" and 0 < eps < 1:
        state.becomes(name, value, ("max_bin", round(1 / eps)))
    else:
        state.drop(name, "max_bin decides")


def _pairs_a_sample(state: Modern, name: str, value: object) -> None:
    new = ("lambdarank_num_pair_per_sample", value)
    state.becomes(name, value, ("lambdarank_pair_method", "mean"), new)


def _split(state: Modern, name: str, value: object) -> None:
    if str(value) == "col":
        raise ValueError(
            "dsplit=col would split columns over the ranks, but text files can be split by rows "
            "only. Leave it out, and the ranks share the rows."
        )
    state.drop(name, GONE[name])


def _booster(state: Modern, name: str, value: object) -> None:
    if str(value) == "gblinear" and state.ranks > 1:
        raise ValueError(
            "booster=gblinear does not train over ranks: XGBoost has no distributed linear model, "
            "and each rank would train on its own rows only. Use gbtree or dart, or run it on one "
            "rank."
        )
    state.keep(name, value)


_RULES: dict[str, Callable[[Modern, str, object], None]] = {
    **dict.fromkeys(GONE, lambda state, name, _: state.drop(name, GONE[name])),
    "booster": _booster,
    "dsplit": _split,
    "gpu_id": lambda *_: None,  # see settle_device
    "num_pairsample": _pairs_a_sample,
    "objective": _objective,
    "silent": _silent,
    "sketch_eps": _sketch_eps,
    "tree_method": _tree_method,
    "updater": _tree_method,
}
