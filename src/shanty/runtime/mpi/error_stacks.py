"""Words the errors of MPICH and Intel MPI, which come with a stack of MPI's own functions."""

from __future__ import annotations

_OTHER = "Other MPI error"  # says nothing
_ENTRY = r"^\w+\(\d+\)\.*: *(\S.*?)\s*$"  # `internal_Send_c(234): Invalid rank has value 99`
_HEAD = "failed"  # how the first entry ends, which repeats the call and its arguments


def reason(call: str, text: str, stack: str) -> str:
    """Return the failed call and its cause, as "MPI_Send failed: Invalid rank has value 99".

    `text` is the class of the error. The cause is the last entry of the stack, as far as that has a
    text: MPI cuts long stacks off.
    """
    import re  # a rank's script may have one of its own in its folder

    causes = [each for each in re.findall(_ENTRY, stack, re.MULTILINE) if not each.endswith(_HEAD)]
    if causes and (text == _OTHER or causes[-1].startswith(text)):
        text = causes[-1]
    elif causes:
        text += f": {causes[-1]}"
    return f"{call} failed: {text}"
