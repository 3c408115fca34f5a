"""Prints what an interpreter is and which packages it has, as one line of JSON.

The text of this file is run by the interpreter that is asked (`python -E -c TEXT`), so it needs
nothing of shanty's, and stays readable for any Python 3. It reads the packages' metadata itself:
importlib.metadata takes five times as long.
"""

import json
import os
import sys
import sysconfig
from typing import Any, Dict, Iterable, List, Optional, Tuple


def distributions(path: Iterable[str]) -> List[Dict[str, str]]:
    """Every installed distribution, the first of a name along the search path."""
    found: Dict[str, Dict[str, str]] = {}
    for folder in path:
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        for entry in names:
            if entry.startswith("~"):  # what pip could not remove
                continue
            info = os.path.join(folder, entry)
            if entry.endswith(".dist-info"):
                one = _read(os.path.join(info, "METADATA"), info)
            elif entry.endswith(".egg-info"):
                inner = os.path.join(info, "PKG-INFO")
                one = _read(inner if os.path.isdir(info) else info, info)
            else:
                continue
            if one is not None:
                found.setdefault(one["name"], one)
    return [found[name] for name in sorted(found)]


def _read(metadata: str, info: str) -> Optional[Dict[str, str]]:
    fields: Dict[str, str] = {}
    try:
        with open(metadata, encoding="utf-8", errors="replace") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key in ("Name", "Version"):
                    fields.setdefault(key, value.strip())
                if len(fields) == 2 or not line.strip():
                    break
    except OSError:
        return None
    if len(fields) < 2:
        return None
    kind, source = _origin(info)
    name = fields["Name"].lower().replace("_", "-").replace(".", "-")
    while "--" in name:
        name = name.replace("--", "-")
    return {
        "name": name, "version": fields["Version"], "info": info, "kind": kind, "source": source,
    }  # fmt: skip


def _origin(info: str) -> Tuple[str, str]:
    """The origin of a distribution, and its URL with the commit, if it has one.

    "index", "archive" (a wheel by its path or URL), "direct" (a folder or a repository) or
    "editable" (a link to a folder).
    """
    try:
        with open(os.path.join(info, "direct_url.json"), encoding="utf-8") as file:
            direct = json.load(file)
        url = str(direct.get("url", ""))
        if "archive_info" in direct:
            return "archive", url
        if direct.get("dir_info", {}).get("editable", False):
            return "editable", url
        commit = direct.get("vcs_info", {}).get("commit_id", "")
        return "direct", url + ("@" + commit if commit else "")
    except (OSError, ValueError, AttributeError):
        pass
    folder = os.path.dirname(info)
    if info.endswith(".egg-info") and os.path.basename(folder) not in (
        "site-packages",
        "dist-packages",
    ):
        return "editable", "file://" + folder  # as `setup.py develop` leaves it
    return "index", ""


def describe() -> Dict[str, Any]:
    """All that is asked."""
    path = [os.path.abspath(folder) for folder in sys.path if folder and os.path.isdir(folder)]
    paths = sysconfig.get_paths()
    return {
        "executable": sys.executable,
        "version": ".".join(str(part) for part in sys.version_info[:3]),
        "key": "{}.{}{}".format(*sys.version_info[:2], getattr(sys, "abiflags", "")),
        "implementation": sys.implementation.name,
        "cache_tag": sys.implementation.cache_tag,
        "prefix": sys.prefix,
        "purelib": paths["purelib"],
        "platlib": paths["platlib"],
        "distributions": distributions(path),
        "watched": {folder: os.stat(folder).st_mtime_ns for folder in path},
    }


if __name__ == "__main__":
    print(json.dumps(describe()))
