"""Explains the failure of a program further than its exit code does.

Loaded by a rank that failed, inside its Python and by `rank.exec`, and never before. The script's
folder may have a `re.py` of its own, so functions import such modules when they are called.
"""

from __future__ import annotations

import errno
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

# Modules whose distribution has another name.
_DISTRIBUTIONS = {
    "cv2": "opencv-python-headless", "PIL": "pillow", "sklearn": "scikit-learn",
    "skimage": "scikit-image", "yaml": "pyyaml", "bs4": "beautifulsoup4", "attr": "attrs",
    "dateutil": "python-dateutil", "google": "protobuf", "Crypto": "pycryptodome",
    "pkg_resources": "setuptools", "serial": "pyserial", "git": "gitpython",
    "dotenv": "python-dotenv", "osgeo": "gdal", "faiss": "faiss-cpu",
}  # fmt: skip
_OF_LAUNCHERS = ("OMPI_", "PMI_", "PMIX_", "MV2_", "MPI_LOCAL", "SLURM_", "PALS_", "JSM_", "FLUX_")
_EVERYWHERE = "RANK, WORLD_SIZE and LOCAL_RANK are, under every MPI: use them as they are"
_STORE = f"{os.sep}store{os.sep}"  # environments there are copies of the user's
_IN_A_GRAPH = (
    r"^(?!Node: )(?: +\(\d+\) [A-Z_ ]+:  |\{\{.*?\}\} )?([A-Za-z_]\w*: .*?)"
    r"\nTraceback \(most recent call last\):"
)
_WITH_STACK = r"(?P<text>[^\n]*), error stack:\n.*?\b(?P<call>MPI_\w+?)(_c)?\("
_LARGE = 2**31 - 1  # bytes, and so elements of any size
_COLLECTIVE = "HorovodInternalError: "
_LONGEST_LINE = 60  # letters of the line that crashed
_STARTS = ("/shanty/runtime/rank/run.py", "/shanty/runtime/rank/fork_server.py")
_NOT_THE_USERS = ("-packages/", "/lib/python", "/shanty/runtime/", "<", ".pyx")
_FRAME = r'^  File "(.*)", line (\d+) in (.*)$'


def how_to_install(module: str) -> str:
    """Return the command that installs the package of `module`; "" where that will not help."""
    top = module.partition(".")[0]
    if top in sys.modules or top in getattr(sys, "stdlib_module_names", ()):
        return ""
    if top.startswith("__"):  # what multiprocessing calls a script
        return ""
    package = _DISTRIBUTIONS.get(top, top)
    if _STORE in sys.executable:
        return f"install it where you start the run, and it is sent along: pip install {package}"
    return f"if it is a package: {sys.executable} -m pip install {package}"


def reason(error: BaseException) -> str:
    """Return the type and message of an exception.

    Where a Python function failed within a graph of TensorFlow, or a collective in a compiled step
    of JAX, only the inner message: TensorFlow and JAX put a page of text and a traceback around it.
    Of an error of MPICH or Intel MPI, only the call and the error, without MPI's own stack.
    """
    import re

    text = str(error)
    found = re.match(_WITH_STACK, text, re.DOTALL)
    if found and type(error).__module__ == "mpi4py.MPI":
        from shanty.runtime.mpi import error_stacks

        return error_stacks.reason(found["call"], found["text"], text)
    if any(each.__module__.startswith("tensorflow.") for each in type(error).__mro__):
        found = re.search(_IN_A_GRAPH, text, re.MULTILINE | re.DOTALL)
        if found:
            return found[1]
    start = text.rfind(_COLLECTIVE)
    if start > 0 and type(error).__module__.startswith("jax"):
        return text[start:].partition("\n\n")[0]
    return f"{type(error).__name__}: {text}" if text.strip() else _without_text(error)


def _without_text(error: BaseException) -> str:
    """Return where an exception without a message was raised, and the script's line before it."""
    import linecache

    lines, trace = [], error.__traceback__
    while trace is not None:
        lines.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    if not lines:
        return type(error).__name__
    source = linecache.getline(*lines[-1]).strip()[:_LONGEST_LINE]
    own = [each for each in lines if not any(part in each[0] for part in _NOT_THE_USERS)]
    named = [f"{os.path.basename(path)}:{number}" for path, number in (*lines[-1:], *own[-1:])]
    text = f"{type(error).__name__} at {named[0]}" + (f": {source}" if source else "")
    return text if named[0] == named[-1] else f"{text} (called at {named[-1]})"


def place(frame: FrameType | None) -> str:
    """Return the innermost line of the user's own on the stack: "train.py:7"; "" without one."""
    while frame is not None:
        path = frame.f_code.co_filename
        if not any(part in path for part in _NOT_THE_USERS):
            return f"{os.path.basename(path)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def changed(error: BaseException, began: float) -> str:
    """Return which file of the script's folder was changed since it `began`, in words; "" for none.

    A traceback shows the lines of files as they are now. Frameworks generate files elsewhere.
    """
    trace = error.__traceback__
    script = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        try:  # the current folder may have been removed
            folder = os.path.join(os.path.dirname(os.path.abspath(script)), "")
            own = os.path.abspath(path).startswith(folder)
            if script and own and os.stat(path).st_mtime > began:
                name = os.path.basename(path)
                return f"{name} was changed after the run had begun: its lines are shown as of now"
        except OSError:
            pass
        trace = trace.tb_next
    return ""


def _hides(error: BaseException) -> str:
    """Return what to do where the import that failed is in a file that hides a module of Python."""
    trace, path = error.__traceback__, ""
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        trace = trace.tb_next
    name = os.path.basename(path).rpartition(".")[0]
    if name not in getattr(sys, "stdlib_module_names", ()) or "/lib/python" in path:
        return ""
    fix = f"{path} hides Python's own module {name!r}: rename it"
    if os.path.dirname(path) in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        fix += ", or take its folder out of PYTHONPATH, which a login file may set"
    return fix


def spawned(error: BaseException) -> bool:
    """Return True for an error of MPI_Comm_spawn, as mpi4py raises it."""
    return _failed_call(error) in ("Spawn", "Spawn_multiple")


def _failed_call(error: BaseException) -> str:
    """Return the name of the function that raised it, as mpi4py's "Recv"."""
    trace, name = error.__traceback__, ""
    while trace is not None:
        name, trace = trace.tb_frame.f_code.co_name, trace.tb_next
    return name.rpartition(".")[2]


def advice(error: BaseException) -> str:
    """Return what to do about an exception that ended a script; "" if that is unknown."""
    fix = _of_variables(error) or _of_folder(error) or _of_home(error)
    fix = fix or _of_large_messages(error)
    if fix:
        return fix
    if any(words in str(error) for words in ("MPI_ERR_TRUNCATE", "Message truncated")):
        if "recv" in _failed_call(error).lower():
            return ""  # `last_words` knows what helps for messages between two ranks
        return str(sys.modules["_shanty_instrumentation"].reports.TRUNCATED)
    module = error.name if isinstance(error, ImportError) else None
    if isinstance(error, AttributeError) and "module '" in str(error):
        module = str(error).split("module '")[1].partition("'")[0]
    if "tensorflow" in sys.modules or "keras" in sys.modules:
        instrumentation = sys.modules["_shanty_instrumentation"]
        fix = str(instrumentation.load_part("rank/old_api_advice").advice(error))
        if fix:
            return fix
    if not module:
        return ""
    fix = _in_the_way(module.partition(".")[0]) or _hides(error)
    if not fix and isinstance(error, ModuleNotFoundError):
        fix = how_to_install(module)
    return fix


def _of_variables(error: BaseException) -> str:
    """Return what to do where a script has looked for its rank in another launcher's variables."""
    environ = os.environ
    if isinstance(error, KeyError):
        name = str(error.args[0]) if error.args else ""
        if not name.startswith(_OF_LAUNCHERS) or name in environ:
            return ""
        return f"{name} is not set here; {_EVERYWHERE}"
    rank, size = environ.get("OMPI_COMM_WORLD_RANK"), environ.get("OMPI_COMM_WORLD_SIZE")
    own = environ.get("RANK"), environ.get("WORLD_SIZE")
    if rank is None or own == (rank, size) or "address already in use" not in str(error).lower():
        return ""
    return (
        f"the script has set RANK={own[0]} and WORLD_SIZE={own[1]} in rank {rank} of {size}, "
        f"perhaps from a variable that is not set here; {_EVERYWHERE}"
    )


def _of_folder(error: BaseException) -> str:
    """Return what happened to the current folder where files of it are not found."""
    if not isinstance(error, (FileNotFoundError, ImportError)):
        return ""
    try:
        os.getcwd()
    except FileNotFoundError:
        folder = os.environ.get("PWD", "")
        if os.path.islink("/proc/self/cwd"):
            folder = os.readlink("/proc/self/cwd").replace(" (deleted)", "")
        return f"the current folder of the rank, {folder}, was removed: find out what removes it"
    return ""


def _of_home(error: BaseException) -> str:
    """Return what to do where a script cannot write below HOME, as it may be with an image's."""
    home, path = os.environ.get("HOME", ""), getattr(error, "filename", None)
    if not isinstance(error, OSError) or not isinstance(path, str) or os.access(home, os.W_OK):
        return ""
    if not os.path.isabs(home) or not os.path.isabs(path):
        return ""
    pair = [path if home != "/" else os.path.dirname(path), home]
    refused = error.errno in (errno.EACCES, errno.EROFS) or not os.path.exists(home)
    if not refused or os.path.commonpath(pair) not in pair:
        return ""
    user = f"user {os.getuid()} cannot write"
    return f"HOME is {home}, where {user}: set it to a folder where it can, such as -e HOME=/tmp"


def _of_large_messages(error: BaseException) -> str:
    """Return what to do where an MPI refused a call of mpi4py's because of its length."""
    refused = "MPI_ERR_ARG" in str(error) or "MPI_ERR_COUNT" in str(error)
    if not (refused or isinstance(error, OverflowError)):
        return ""
    within, large, frame = [], "", error.__traceback__
    while frame is not None:
        if "mpi4py" in frame.tb_frame.f_code.co_filename:
            within.append(frame.tb_frame.f_code.co_filename)
        else:
            for name, value in list(frame.tb_frame.f_locals.items()):
                size = len(value) if isinstance(value, (bytes, bytearray)) else 0
                size = size or getattr(value, "nbytes", 0)
                if isinstance(size, int) and size >= _LARGE:
                    large = f"{name} has {size / 2**30:.1f} GiB"
        frame = frame.tb_next
    if any("msgpickle" in each for each in within):
        large = large or "the pickled object may have 2 GiB or more"
    if not within or not large:
        return ""
    return (
        f"{large}: Open MPI takes less than 2 GiB, and 2^31 elements, in one call. Send it in "
        "parts, or try another MPI: --mpi mpich"
    )


def _in_the_way(module: str) -> str:
    """Return what to rename where a file beside the script hides a package."""
    from importlib.machinery import PathFinder

    folder = os.path.realpath(sys.path[0])
    path = getattr(sys.modules.get(module), "__file__", None) or ""
    if module not in sys.modules:  # its import has failed
        path = getattr(PathFinder.find_spec(module, [folder]), "origin", None) or ""
    if not path or os.path.realpath(os.path.dirname(path)) != folder:
        return ""
    others = [each for each in sys.path[1:] if each and os.path.realpath(each) != folder]
    known = getattr(sys, "stdlib_module_names", ())
    if module not in known and PathFinder.find_spec(module, others) is None:
        return ""
    return f"rename {os.path.basename(path)}: it is found in the place of the package {module}"


def no_module(name: str) -> str:
    """Return what to do where `python -m NAME` finds no such module."""
    closest = sys.modules["_shanty_instrumentation"].load_part("suggestions").closest
    names = [each[:-3] if each.endswith(".py") else each for each in os.listdir(".")]
    near = closest(name, [each for each in names if each.isidentifier()])
    if near and near != name:
        return f"did you mean -m {near}?"
    if os.path.isdir(name):
        return f"give the module in it, or write {name}/__main__.py"
    return how_to_install(name)


def linked_mpi(program: str) -> str:
    """Return the libmpi that a compiled program is linked to, as ldd(1) finds it; "" for none.

    It may have been built for another MPI than the launcher's, and then it ends before the node
    agent can see which library it has loaded.
    """
    import re
    import shutil
    import subprocess

    argv = ["ldd", shutil.which(program) or program]
    try:
        answer = subprocess.run(argv, capture_output=True, text=True, timeout=2, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"^\s*libmpi(?:ch)?\.so.* => (/.*?)(?: \(|$)", answer.stdout, re.MULTILINE)
    return found[1] if found else ""


def crash(path: str) -> tuple[str, str]:
    """Return what faulthandler wrote into the file at `path`, and the line of Python it names."""
    import re

    try:
        with open(path, errors="replace") as file:
            text = file.read()
    except OSError:
        return "", ""
    lines = text.splitlines(keepends=True)
    text = "".join(line for line in lines if not any(part in line for part in _STARTS))
    frames = re.findall(_FRAME, text, re.MULTILINE)
    own = [
        frame for frame in frames if "-packages/" not in frame[0] and "/lib/python" not in frame[0]
    ]
    if not frames:
        return text, ""
    file_name, line, function = (own or frames)[0]
    source = ""
    try:
        with open(file_name, errors="replace") as file:
            source = file.read().splitlines()[int(line) - 1].strip()[:_LONGEST_LINE]
    except (OSError, IndexError):
        pass
    where = f"in {function} ({os.path.basename(file_name)}:{line})"
    return text, f"{where}: {source}" if source else where


def refusal(program: str, error: OSError) -> tuple[str, str]:
    """Return why `program` could not be started, and what to do if that is not obvious."""
    reason, fix = error.strerror or str(error), ""
    if os.sep not in program and error.errno in (errno.ENOENT, errno.EACCES):
        folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
        found = [path for each in folders if os.path.isfile(path := os.path.join(each, program))]
        if not found:
            return reason, _elsewhere(program) or _CHECK
        program = next((path for path in found if os.access(path, os.X_OK)), found[0])
    if os.path.islink(program) and not os.path.exists(program):
        return f"it is a link to {os.readlink(program)}, which does not exist", ""
    if os.path.isdir(program):
        return "it is a folder", ""
    if program.endswith(_SOURCES) and os.path.exists(program):
        return "it is the text of a program", _COMPILE.format(program)
    try:
        with open(program, "rb") as file:
            start = file.read(256)
    except FileNotFoundError:
        return reason, _elsewhere(program) or _CHECK
    except OSError:
        start = b""
    line = os.fsdecode(start[2:].partition(b"\n")[0]) if start.startswith(b"#!") else ""
    interpreter = line.split()[0] if line.split() else ""
    if error.errno == errno.ENOENT and line.endswith("\r"):
        reason = f"its lines end as on Windows, so that the first one names '{interpreter}\\r'"
        fix = f"convert them: sed -i 's/\\r$//' {program}"
    elif error.errno == errno.ENOENT:  # of the interpreter, or of what loads libraries
        reason = f"its first line names {interpreter}, which does not exist" if line else _FOREIGN
        if line:
            fix = f"write the path of an interpreter into {program}, or reinstall it"
    elif error.errno == errno.EACCES and not os.access(program, os.X_OK):
        reason, fix = "it may not be executed", f"chmod +x {program}"
        if os.stat(program).st_mode & 0o111 and os.statvfs(program).f_flag & os.ST_NOEXEC:
            reason, fix = "it is on a disk whose programs may not be executed (noexec)", ""
    elif error.errno == errno.ENOEXEC:
        reason, fix = "it is a text without a first line such as #!/bin/sh", "write that line"
        if start.startswith(b"\x7fELF"):
            reason, fix = _FOREIGN, "build it here"
        elif not start:
            reason, fix = "it is empty", ""
    elif error.errno != errno.ENOENT:
        fix = _CHECK
    return reason, fix


_CHECK = "check the name, its PATH and its permissions; one in this folder is ./NAME"
_COMPILE = "compile it first, as with: mpicc {} -o NAME"
_SOURCES = (".c", ".cc", ".cpp", ".cxx", ".f", ".f90", ".cu")
_FOREIGN = "it was built for another system"


def _elsewhere(program: str) -> str:
    """Return a hint where the program may be that is not found by that name; "" if unknown."""
    from shanty.runtime.suggestions import closest

    folder, name = os.path.split(program)
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return f"the folder {folder} does not exist"
    if name in names:
        if name.endswith(_SOURCES):
            return _COMPILE.format(name)
        if name.endswith(".py"):
            return f"it is a script of Python: write python {program}"
        mode = "" if os.access(program, os.X_OK) else f", after chmod +x {name}"
        return f"it is in this folder: write ./{name}{mode}"
    near = f"{name}.py" if f"{name}.py" in names else closest(name, names)
    return f"did you mean {os.path.join(folder, near)}?" if near else ""
