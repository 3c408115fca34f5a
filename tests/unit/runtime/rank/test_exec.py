"""What a rank is given before its program starts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from shanty.runtime.rank import exec
from shanty.runtime.rank.exec import name_user

NAMELESS = 54321  # a user id that no passwd file has


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
def test_a_user_id_without_a_name_gets_one() -> None:
    environ: dict[str, str] = {}
    name_user(environ)
    assert not environ  # this one has a name
    script = "import getpass, os; from shanty.runtime.rank.exec import name_user; "
    script += f"os.setuid({NAMELESS}); name_user(os.environ); print(getpass.getuser())"
    kept = {
        k: v for k, v in os.environ.items() if k not in ("USER", "LOGNAME", "LNAME", "USERNAME")
    }
    done = subprocess.run(
        [sys.executable, "-c", script], env=kept, capture_output=True, text=True, check=False
    )
    assert done.stdout == f"user{NAMELESS}\n", done.stderr


def test_a_name_that_is_set_stays() -> None:
    environ = {"LOGNAME": "ann"}
    name_user(environ)
    assert environ == {"LOGNAME": "ann"}


def test_open_mpis_words_about_a_loss_are_left_out() -> None:
    rank = object.__new__(exec._Rank)
    rank.noisy = False
    noise = b"NBC_Progress: an error 75 was found - aborting the schedule\n"
    pieces = [noise + b"\n" + noise, b"\n" + noise, b"\n", b"text\n", b"\n", noise + b"\nmore\n"]
    assert b"".join(map(rank._without_noise, pieces)) == b"text\n\nmore\n"
    of_libevent = b"[warn] Epoll ADD(4) on fd 25 failed: Bad file descriptor\n"
    mixed = b"50 %\r" + b"60 %\n" + of_libevent + noise + b"\n" + b"last, incomplete"
    assert rank._without_noise(mixed) == b"50 %\r60 %\nlast, incomplete"
