"""What holds for the whole of the source: layers, sizes, the oldest Python of what travels."""

from __future__ import annotations

import ast
import functools
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
PACKAGE = SRC / "shanty"
MODULES = sorted(PACKAGE.rglob("*.py"))
RUNTIME = [path for path in MODULES if "runtime" in path.relative_to(PACKAGE).parts]
NOT_FRAMEWORKS = {"cli", "client", "dashboard", "launch", "runtime", "compat"}
NOT_FRAMEWORKS |= {"flyte", "integrations", "sdk", "tasks", "workflows"}
FRAMEWORKS = [
    path
    for path in MODULES
    if len(path.relative_to(PACKAGE).parts) > 1
    and path.relative_to(PACKAGE).parts[0] not in NOT_FRAMEWORKS
]
OF_TENSORFLOW = ("shanty.tensorflow", "shanty.keras")
COLLECTIVES = [path for path in MODULES if path.relative_to(PACKAGE).parts[0] == "collectives"]
# A rank asks the mpi4py that its own script has imported for the size of the world.
FROM_THE_SCRIPT = {"mpi4py"}


def name(path: Path) -> str:
    return str(path.relative_to(SRC))


@functools.cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(text(path), filename=str(path))


@functools.cache
def imported(path: Path) -> frozenset[str]:
    """Every name that a file imports, with its module, wherever in it; relative ones as '.'."""
    found: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." if node.level else node.module
            found.update(f"{module}.{alias.name}" for alias in node.names)
    return frozenset(found)


def within(imported_name: str, module: str) -> bool:
    return imported_name == module or imported_name.startswith(module + ".")


def offenders(
    paths: Sequence[Path], forbidden: Callable[[Path], Collection[str]]
) -> dict[str, list[str]]:
    """The files that break a rule, each with what breaks it."""
    assert paths, "the rule applies to no file: a folder has been moved"
    found = {name(path): sorted(forbidden(path)) for path in paths}
    return {path: what for path, what in found.items() if what}


def test_no_module_is_over_600_lines() -> None:
    lengths = {name(path): len(text(path).splitlines()) for path in MODULES}
    assert not {path: lines for path, lines in lengths.items() if lines > 600}


def test_runtime_imports_the_standard_library_only() -> None:
    def forbidden(path: Path) -> Collection[str]:
        allowed = set(sys.stdlib_module_names)
        if "rank" in path.parts:
            allowed |= FROM_THE_SCRIPT
        return {
            what
            for what in imported(path)
            if what.partition(".")[0] not in allowed and not within(what, "shanty.runtime")
        }

    assert not offenders(RUNTIME, forbidden)


def test_runtime_is_written_in_python_39() -> None:
    def forbidden(path: Path) -> Collection[str]:
        try:
            ast.parse(text(path), filename=str(path), feature_version=(3, 9))
        except SyntaxError as error:
            return [str(error)]
        return []

    assert not offenders(RUNTIME, forbidden)


def test_runtime_loads_under_a_real_python_39() -> None:
    python = shutil.which("python3.9")
    works = python and not subprocess.run([python, "-c", ""], capture_output=True).returncode
    if not works:
        pytest.skip("there is no python3.9 on PATH")
    modules = [
        module_of(path)
        for path in RUNTIME
        if path.name != "boot.py" and not {"shims", "hook"} & set(path.parts)  # programs
    ]
    program = f"import sys; sys.path.insert(0, {str(SRC)!r})\n" + "\n".join(
        f"import {module}" for module in modules
    )
    done = subprocess.run(
        [str(python), "-I", "-W", "error", "-B", "-c", program], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_collectives_know_no_framework() -> None:
    """Not where it is imported late, nor for types alone: that is all the imports there are."""
    allowed = {*sys.stdlib_module_names, "cloudpickle", "mpi4py", "numpy", "shanty"}

    def forbidden(path: Path) -> Collection[str]:
        return {what.partition(".")[0] for what in imported(path)} - allowed

    assert not offenders(COLLECTIVES, forbidden)


def test_a_framework_knows_of_launching_only_the_run_directory() -> None:
    def forbidden(path: Path) -> Collection[str]:
        own = "shanty." + path.relative_to(PACKAGE).parts[0]
        of_keras = own == "shanty.tensorflow" and "keras" in path.parts  # tf.keras is a Keras
        return {
            what
            for what in imported(path)
            if within(what, "shanty")
            and not within(what, own)
            and not (of_keras and within(what, "shanty.keras"))
            and not within(what, "shanty.collectives")
            and not (own == "shanty.tensorflow" and within(what, "shanty.keras"))
            and not (own in OF_TENSORFLOW and within(what, "shanty.tensorflow_ops"))
            and not within(what, "shanty.runtime.rundir")
            and not within(what, "shanty._lazy")
            and not within(what, "shanty._singleton")
            and not within(what, "shanty._categories")
            and not within(what, "shanty._departures")
            and not within(what, "shanty._metrics")
            and what != "shanty"  # what any script imports: light, and it knows the run directory
        }

    assert not offenders(FRAMEWORKS, forbidden)


def test_the_site_of_a_run_is_read_and_written_in_one_module() -> None:
    """`runtime/site.py` knows what it holds; `runtime/rundir.py` has its path."""
    others = {*MODULES} - {PACKAGE / "runtime" / "site.py", PACKAGE / "runtime" / "rundir.py"}
    raw = re.compile(r"""(read|write)_json\(\s*[\w.]+\.site\b|["'/]site\.json["']""")
    assert not {name(path) for path in others if raw.search(path.read_text(encoding="utf-8"))}


def executed(tree: ast.AST) -> Iterator[ast.AST]:
    """Everything in a module that is ever executed: not what is for types alone."""
    for node in ast.iter_child_nodes(tree):
        for_types = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for each in node.orelse if for_types else [node]:
            yield each
            yield from executed(each)


def module_of(path: Path) -> str:
    return name(path)[: -len(".py")].replace("/", ".").removesuffix(".__init__")


def imported_modules(path: Path, known: Collection[str]) -> set[str]:
    """Which modules of `known` a file imports, at its start or in a function."""
    package = module_of(path if path.name == "__init__.py" else path.parent / "__init__.py")
    found: set[str] = set()
    for node in executed(parsed(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            names = {f"{base}.{alias.name}": base for alias in node.names}
            found.update(each if each in known else base for each, base in names.items())
    return found & set(known) - {module_of(path)}


def test_no_cycle_even_with_lazy_imports_counted() -> None:
    known = {module_of(path) for path in MODULES}
    graph = {module_of(path): imported_modules(path, known) for path in MODULES}
    assert graph["shanty"] >= {"shanty._version", "shanty.sdk.submit"}  # of its start, and later
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" is imported by ".join(error.args[1]))


# `import_module` is for optional packages and plugins: contracts and tests see no strings. These
# load modules of shanty by it, or modules that others name.
BY_NAME = {
    "compat/tensorflow1/__init__.py": "`import keras` as the script wrote it",
    "compat/tensorflow1/installed.py": "the version of TensorFlow or tf_keras, whichever is there",
    "compat/tensorflow1/names.py": "modules of TensorFlow, by the names that a script uses",
    "keras/xla.py": "modules of Keras, which is a package of its own or in TensorFlow",
    "launch/containers/images.py": "the verb of a request, as on hosts",
    "runtime/node/background.py": "modules that an agent may need later, in a thread",
    "runtime/boot.py": "the program that a host is to run, from its command line",
    "runtime/rank/fork_server.py": "the modules that the user, or the script, names",
    "runtime/rank/import_hooks.py": "stand-ins, which what travels may not import",
    "runtime/rank/tensorflow1.py": "a stand-in, which what travels may not import",
    "runtime/rpc/server.py": "the verb of a request: a host loads what it is asked for",
}


def test_shanty_imports_its_own_modules_by_statements() -> None:
    def is_ours(call: ast.Call) -> bool:
        """Whether a call loads a module that is ours, or may be."""
        name = call.args[0]
        if isinstance(name, ast.JoinedStr):
            name = name.values[0]
        known = isinstance(name, ast.Constant) and isinstance(name.value, str)
        return not known or name.value.startswith((".", "shanty"))

    found = {
        str(path.relative_to(PACKAGE))
        for path in MODULES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] in ("import_module", "__import__")
        and is_ours(node)
    }
    assert found == BY_NAME.keys()


# Where Slurm and Kubernetes are named in code: what belongs to them, and what reads other programs'
# words and variables. All else asks what a target declares.
KNOWS_TARGETS = (
    "launch/targets/", "launch/options/", "launch/kubernetes/", "launch/doctor/kubernetes.py",
    "runtime/slurm/", "runtime/kubernetes/", "runtime/queues.py", "runtime/old_jobs.py",
    "runtime/rpc/", "runtime/rank/", "runtime/lines/", "runtime/mpi/",
    "runtime/foreign_variables.py", "runtime/containers/", "integrations/", "cli/k8s.py",
    "program.py",
    "runtime/connections.py",  # a command that starts another one in a pod
    "runtime/node/rank_script.py",  # variables that all ranks have to have alike
    "runtime/boot.py",  # the names of programs, one of which is Slurm's
    "launch/transport/connect.py",  # a host that is a pod
    "launch/containers/options.py",  # a claim among the mounts
    "launch/finding.py",  # the titles of all findings
    "client/quantities.py",  # as a cluster writes them
    "client/manifest.py",  # an MPIJob
    "client/options.py", "cli/run.py", "cli/machines.py",  # their helps
)  # fmt: skip
TARGETS = re.compile(r"slurm|k8s|kubernetes", re.IGNORECASE)


def test_generic_code_names_no_target() -> None:
    def named(path: Path) -> Collection[str]:
        if not TARGETS.search(text(path)):
            return ()
        nodes = list(ast.walk(ast.parse(text(path), filename=str(path))))
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
        docs = {ast.get_docstring(each, False) for each in nodes if isinstance(each, documented)}
        words = set(imported(path))
        for node in nodes:
            for key in ("id", "attr", "arg", "name", "value"):
                word = getattr(node, key, None)
                if isinstance(word, str) and word not in docs:
                    words.add(word)
        return {each for each in words if TARGETS.search(each)}

    files = {path: path.relative_to(PACKAGE).as_posix() for path in MODULES}
    generic = [path for path, file in files.items() if not file.startswith(KNOWS_TARGETS)]
    assert not offenders(generic, named)


def test_what_ranks_load_by_path_is_there() -> None:
    """`load_part("rank/ending")` is a file in runtime; no import names it."""
    runtime = PACKAGE / "runtime"
    files = [path for path in MODULES if path.is_relative_to(runtime)]
    parts = {part for path in files for part in re.findall(r'load_part\("([\w/]+)"\)', text(path))}
    assert "rank/reports" in parts
    assert not {part for part in parts if not (runtime / f"{part}.py").is_file()}


def defined(path: Path) -> set[str]:
    """The names of a module, and those in its strings, which `_lazy` and `__all__` have."""
    found = set()
    for node in ast.walk(parsed(path)):
        match node:
            case (
                ast.FunctionDef(name=own) | ast.AsyncFunctionDef(name=own) | ast.ClassDef(name=own)
            ):
                found.add(own)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found |= {(each.asname or each.name).partition(".")[0] for each in names}
            case ast.Name(id=own, ctx=ast.Store()) | ast.Constant(value=str(own)):
                found.add(own)
    return found


def test_benchmarks_import_what_is_there() -> None:
    """They are not run by tests, nor seen by mypy."""
    missing = []
    for path in sorted((SRC.parent / "benchmarks").glob("*.py")):
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.ImportFrom) or not within(node.module or "", "shanty"):
                continue
            folder = SRC / (node.module or "").replace(".", "/")
            file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
            names = defined(file) if file.exists() else set()
            names |= {each.stem for each in folder.glob("*")}
            missing += [
                f"{path.name}: {node.module}.{each.name}"
                for each in node.names
                if each.name not in names
            ]
    assert not missing


def test_whoever_cites_it_names_this_version() -> None:
    root = SRC.parent
    version = re.search('__version__ = "(.+)"', text(PACKAGE / "_version.py"))
    assert version is not None
    assert f"\nversion: {version.group(1)}\n" in (root / "CITATION.cff").read_text(encoding="utf-8")
