"""What signals are called, and what it means that one ended a rank."""

from __future__ import annotations

import signal

MEANINGS = {
    "SIGSEGV": "it touched memory that is not its own, or used up its stack (ulimit -s)",
    "SIGBUS": "a mapped file or /dev/shm is too small, or memory is misaligned",
    "SIGKILL": "someone, or the kernel, killed it",
    "SIGTERM": "someone ended it, or its launcher",
    "SIGABRT": "it gave up, often after an error of MPI or of a library",
    "SIGILL": "it was built for another processor",
    "SIGFPE": "an integer was divided by zero",
    "SIGXFSZ": "a file grew beyond the limit of its size, ulimit -f",
    "SIGXCPU": "it used more CPU time than its limit, ulimit -t",
    "SIGALRM": "a timer of its own, or someone else, sent it; it has no handler for it",
    "SIGSYS": "it made a system call that is forbidden here, as by a container's seccomp profile",
    "SIGTRAP": "it stopped itself, as a failed check in a library does",
    "SIGPIPE": "it wrote to a pipe or socket that nobody reads any more",
    "SIGHUP": "its terminal or session ended, or someone sent it; it has no handler for it",
    "SIGQUIT": "someone sent it, as Ctrl-\\ does",
    "SIGUSR1": "someone, or a batch system, sent it; it has no handler for it",
    "SIGUSR2": "someone, or a batch system, sent it; it has no handler for it",
}


def signal_name(number: int) -> str:
    """SIGSEGV for 11, and so on."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
