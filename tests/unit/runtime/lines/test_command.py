"""Where run.py is put into a Python command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from shanty.runtime.lines.command import become_next, insert_runner, is_python, reads_its_script

R = "/x/run.py"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python x.py a", f"python {R} x.py a"),
        ("python3.12 -u x.py", f"python3.12 -u {R} x.py"),
        ("/v/bin/python -I x.py -m y", f"/v/bin/python -I {R} x.py -m y"),
        ("python -W error -X dev x.py", f"python -W error -X dev {R} x.py"),
        ("python -Werror -Xdev x.py", f"python -Werror -Xdev {R} x.py"),
        ("python -m pkg.mod --a", f"python {R} -m pkg.mod --a"),
        ("python -um pkg a", f"python -u {R} -m pkg a"),
        ("python -mpkg a", f"python {R} -m pkg a"),
        ("python -Ic pass a", f"python -I {R} -c pass a"),
        ("python --check-hash-based-pycs no x.py", f"python --check-hash-based-pycs no {R} x.py"),
        ("python", "python"),
        ("python -", "python -"),
        ("python -V", "python -V"),
        ("python --version", "python --version"),
        ("python -u", "python -u"),
        ("bash -c x.py", "bash -c x.py"),
        ("pythonic x.py", "pythonic x.py"),
    ],
)
def test_lines(line, expected):
    assert insert_runner(line.split(), R) == expected.split()


def test_names():
    assert is_python("/usr/bin/python3.13")
    assert is_python("pypy3")
    assert not is_python("python-config")


@pytest.mark.parametrize(
    ("line", "reads"),
    [
        ("python", True), ("python -", True), ("python3 -u - x", True), ("python -X dev", True),
        ("python -W error -", True), ("bash", True), ("sh -e", True), ("bash -s x", True),
        ("python -u /dev/stdin x", True), ("bash -e /proc/self/fd/0", True),
        ("python x.py", False), ("python -m x", False), ("python -c x", False),
        ("python -V", False), ("python --version", False), ("python -uc x", False),
        ("bash x.sh", False), ("bash -c x", False), ("bash -ec x", False), ("wc -l", False),
    ],
)  # fmt: skip
def test_what_reads_its_script_from_standard_input(line: str, reads: bool) -> None:
    assert reads_its_script(line.split()) is reads


def test_a_program_whose_interpreter_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "tool"
    program.write_text("#!/none/python\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError) as raised:
        become_next("tool", [], "/none")
    assert raised.value.filename == str(program)
