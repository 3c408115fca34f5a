"""Finds which frameworks a script imports, without running it: what `--warm` has to import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from shanty.runtime.errors import UsageError
from shanty.runtime.spec import JobSpec, Module, Script

# Packages that take long to import, and start neither threads nor MPI.
_HEAVY = frozenset((
    "accelerate", "catboost", "datasets", "flax", "jax", "keras", "lightgbm", "lightning",
    "matplotlib", "numpy", "optax", "pandas", "pytorch_lightning", "scipy", "sklearn",
    "tensorflow", "tf_keras", "torch", "torchaudio", "torchvision", "transformers", "xgboost",
))  # fmt: skip
_BELOW = ("shanty", "horovod")  # their `.torch` is for torch, and so on


def heavy_imports(job: JobSpec) -> tuple[str, ...]:
    """Return the modules that the job's script imports at its top and that take long to import.

    What follows a line that sets a variable of the environment does not count: it may depend on it.
    UsageError where there are none.
    """
    if not isinstance(job.command, (Module, Script)):
        return job.warm  # which is refused where the run is planned
    path = _file(job.command, Path(job.workdir))
    fix = "name the modules: --warm=torch; or leave --warm out"
    try:
        tree = ast.parse(path.read_bytes())
    except OSError as error:
        raise UsageError(f"--warm cannot read {path}", error.strerror or str(error), fix) from error
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"--warm cannot read {path}", str(error), fix) from error
    found = tuple(dict.fromkeys(_heavy(tree)))
    if not found:
        why = "and of what comes after a line that sets a variable, none is taken"
        what = f"--warm: {path.name} imports no framework at its top"
        raise UsageError(what, f"known are {', '.join(sorted(_HEAVY))}; {why}", fix)
    return found


def _file(command: Module | Script, folder: Path) -> Path:
    """Return the file that Python would run."""
    if isinstance(command, Module):
        path = folder.joinpath(*command.name.split("."))
        return path / "__main__.py" if path.is_dir() else path.with_name(f"{path.name}.py")
    path = folder / command.path
    return path / "__main__.py" if path.is_dir() else path


def _heavy(tree: ast.Module) -> Iterator[str]:
    for statement in tree.body:
        body = statement.body if isinstance(statement, ast.Try) else [statement]
        for each in body:
            if isinstance(each, ast.Import):
                yield from filter(None, (_known(alias.name) for alias in each.names))
            elif isinstance(each, ast.ImportFrom) and each.level == 0 and each.module:
                names = [each.module]
                if each.module in _BELOW:
                    names = [f"{each.module}.{alias.name}" for alias in each.names]
                yield from filter(None, map(_known, names))
            elif _sets_variable(each):
                return


def _known(name: str) -> str:
    """Return the module to import for `name`; "" if it is not a heavy one."""
    first, _, rest = name.partition(".")
    if first in _BELOW:
        rest = rest.partition(".")[0]
        return rest if rest in _HEAVY else ""
    return name if first in _HEAVY else ""


def _sets_variable(statement: ast.stmt) -> bool:
    """Return true where a statement, which is executed at once, mentions the environment."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return False
    names = (getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(statement))
    return any(name in ("environ", "putenv", "load_dotenv") for name in names)
