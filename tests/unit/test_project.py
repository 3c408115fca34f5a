"""What holds for the whole of the source: layers, sizes, the oldest Python of what travels."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
PACKAGE = SRC / "shanty"
MODULES = sorted(PACKAGE.rglob("*.py"))
RUNTIME = [path for path in MODULES if "runtime" in path.relative_to(PACKAGE).parts]
NOT_FRAMEWORKS = {"cli", "dashboard", "launch", "runtime", "compat"}
NOT_FRAMEWORKS |= {"flyte", "notebook", "sdk", "tasks", "workflows"}
FRAMEWORKS = [
    path
    for path in MODULES
    if len(path.relative_to(PACKAGE).parts) > 1
    and path.relative_to(PACKAGE).parts[0] not in NOT_FRAMEWORKS
]
COLLECTIVES = [path for path in MODULES if path.relative_to(PACKAGE).parts[0] == "collectives"]
# A rank asks the mpi4py that its own script has imported for the size of the world.
FROM_THE_SCRIPT = {"mpi4py"}


def name(path: Path) -> str:
    return str(path.relative_to(SRC))


def imported(path: Path) -> set[str]:
    """Every name that a file imports, with its module, wherever in it; relative ones as '.'."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." if node.level else node.module
            found.update(f"{module}.{alias.name}" for alias in node.names)
    return found


def within(imported_name: str, module: str) -> bool:
    return imported_name == module or imported_name.startswith(module + ".")


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_no_module_is_over_600_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 600


@pytest.mark.parametrize("path", RUNTIME, ids=name)
def test_runtime_imports_the_standard_library_only(path: Path) -> None:
    allowed = set(sys.stdlib_module_names)
    if "rank" in path.parts:
        allowed |= FROM_THE_SCRIPT
    assert not {
        what
        for what in imported(path)
        if what.partition(".")[0] not in allowed and not within(what, "shanty.runtime")
    }


@pytest.mark.parametrize("path", RUNTIME, ids=name)
def test_runtime_is_written_in_python_39(path: Path) -> None:
    ast.parse(path.read_text(encoding="utf-8"), filename=str(path), feature_version=(3, 9))


def test_runtime_loads_under_a_real_python_39() -> None:
    python = shutil.which("python3.9")
    works = python and not subprocess.run([python, "-c", ""], capture_output=True).returncode
    if not works:
        pytest.skip("there is no python3.9 on PATH")
    modules = [
        name(path)[: -len(".py")].replace("/", ".").removesuffix(".__init__")
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


@pytest.mark.parametrize("path", COLLECTIVES, ids=name)
def test_collectives_know_no_framework(path: Path) -> None:
    """Not where it is imported late, nor for types alone: that is all the imports there are."""
    roots = {what.partition(".")[0] for what in imported(path)}
    assert roots <= {*sys.stdlib_module_names, "cloudpickle", "mpi4py", "numpy", "shanty"}


@pytest.mark.parametrize("path", FRAMEWORKS, ids=name)
def test_a_framework_knows_of_launching_only_the_run_directory(path: Path) -> None:
    own = "shanty." + path.relative_to(PACKAGE).parts[0]
    of_keras = own == "shanty.tensorflow" and "keras" in path.parts  # tf.keras is a Keras
    assert not {
        what
        for what in imported(path)
        if within(what, "shanty")
        and not within(what, own)
        and not (of_keras and within(what, "shanty.keras"))
        and not within(what, "shanty.collectives")
        and not (own == "shanty.tensorflow" and within(what, "shanty.keras"))
        and not within(what, "shanty.runtime.rundir")
        and not within(what, "shanty._lazy")
        and not within(what, "shanty._singleton")
        and not within(what, "shanty._categories")
        and not within(what, "shanty._metrics")
        and what != "shanty"  # what any script imports: light, and it knows the run directory
    }
