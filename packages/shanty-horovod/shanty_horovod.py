"""Finds shanty's stand-in for `import horovod` where nothing else does.

A .pth file imports this at the start of every Python of the environment, so it must cost nothing
before somebody asks for `horovod`, and never fail.
"""

import os
import sys


class Finder:
    """The last of sys.meta_path: a Horovod that is installed comes first."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """Find the package `horovod`, and nothing else; SHANTY_HOROVOD=0 turns it off."""
        if name != "horovod" or path is not None or os.environ.get("SHANTY_HOROVOD") == "0":
            return None
        try:
            from shanty import compat
        except ImportError:  # shanty was removed
            return None
        return compat.find_spec(name, path, target)


sys.meta_path.append(Finder)
