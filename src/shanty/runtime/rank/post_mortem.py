"""Says more of a program that failed than its exit code does.

Loaded by a rank that failed, inside its Python and by `rank.exec`, and never before.
"""

from __future__ import annotations

import os
import re
import sys

# Modules whose distribution has another name.
_DISTRIBUTIONS = {
    "cv2": "opencv-python-headless", "PIL": "pillow", "sklearn": "scikit-learn",
    "skimage": "scikit-image", "yaml": "pyyaml", "bs4": "beautifulsoup4", "attr": "attrs",
    "dateutil": "python-dateutil", "google": "protobuf", "Crypto": "pycryptodome",
    "pkg_resources": "setuptools", "serial": "pyserial", "git": "gitpython",
    "dotenv": "python-dotenv", "osgeo": "gdal", "faiss": "faiss-cpu", "mlxtend": "mlxtend",
}  # fmt: skip
_STORE = f"{os.sep}store{os.sep}"  # environments there were made after the one of the user
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


def how_to_install(module: str) -> str:
    """Return the command that brings what lacks for `module`; "" where another thing is wrong."""
    top = module.partition(".")[0]
    if top in sys.modules or top in getattr(sys, "stdlib_module_names", ()):
        return ""
    package = _DISTRIBUTIONS.get(top, top)
    if _STORE in sys.executable:
        return f"install it where you start the run, and it is sent along: pip install {package}"
    return f"if it is a package: {sys.executable} -m pip install {package}"


def linked_mpi(program: str) -> str:
    """Return the libmpi that a compiled program is linked to, as ldd(1) finds it; "" for none.

    It may have been built for another MPI than the launcher's, and then it ends before anyone
    could look at what it has loaded.
    """
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
    try:
        with open(path, errors="replace") as file:
            text = file.read()
    except OSError:
        return "", ""
    lines = text.splitlines(keepends=True)
    text = "".join(line for line in lines if "/shanty/runtime/rank/run.py" not in line)
    frames = _FRAME.findall(text)
    own = [
        frame for frame in frames if "-packages/" not in frame[0] and "/lib/python" not in frame[0]
    ]
    if not frames:
        return text, ""
    file_name, line, function = (own or frames)[0]
    return text, f"in {function} ({os.path.basename(file_name)}:{line})"
