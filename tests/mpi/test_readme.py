"""README and guide are true: every command in them is run, and what they show comes out."""

from __future__ import annotations

import os
import re
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from runs import Shanty, mpi_folder, wait_for
from shanty.launch.inventory import parse_host, spread
from shanty.launch.targets.registry import KUBERNETES, SLURM
from shanty.program import app
from shanty.runtime.mpi import flavours

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "tutorials" / "guide.md").read_text(encoding="utf-8")
REFERENCE = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
TUTORIAL = (ROOT / "docs" / "tutorials" / "two-machines.md").read_text(encoding="utf-8")
BOTH = README + GUIDE + TUTORIAL
MOST = 120  # lines of the README
# What is not run here, since it downloads or changes this environment, and how it is checked.
INSTALLS = re.compile(r"pip install '?\.(?:\[(\w+)\])?'?")
INSTALLS_ANY = re.compile(r"(?:pip install (?:\. )?\w|python3 -m venv ).*")
INSTALLS_MPI = re.compile(r"shanty mpi install (\w+)")
# What the commands of a section need beside the files that the texts give.
BEFORE = {"Find, repeat, stop and delete runs": "shanty run -q -n 2 --name night train.py"}
# What the text tells to do in another terminal, once the run is on.
MEANWHILE = {"shanty run --on lab -n 3 --ppn 1 stuck.py": "shanty lab cut lab3"}
# What this machine need not have, or other tests run: hosts, Slurm, images, a Horovod script by its
# own. It is only checked.
ELSEWHERE = (
    "--on desk", "--on ann@", "--on slurm", "salloc ", "--image ",
    "shanty run -n 2 examples/horovod/",
)  # fmt: skip
CANNOT = 69  # how `shanty lab up` says that this machine cannot have a lab


class Step(NamedTuple):
    """A command of the texts, the lines shown below it, and the exit code that it tells."""

    command: str
    shows: tuple[str, ...]
    code: int


class Section(NamedTuple):
    title: str
    steps: list[Step]
    python: list[str]
    toml: list[str]


def blocks(text: str, *kinds: str) -> list[str]:
    return [
        body
        for kind, body in re.findall(r"^```(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        if kind in kinds
    ]


def steps(block: str) -> list[Step]:
    """The commands of a block: those after a `$ `, or all lines where there is none."""
    if not block.startswith("$ "):
        lines = (line.partition("  #")[0].strip() for line in block.splitlines())
        return [Step(line, (), 0) for line in lines if line]
    found: list[Step] = []
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *shown = part.splitlines()
        if command == "echo $?":
            found[-1] = found[-1]._replace(code=int(shown[0]))
        else:
            found.append(Step(command, tuple(line for line in shown if line.strip()), 0))
    return found


def sections(text: str) -> list[Section]:
    """A text, cut at its headings and at the numbers of the guide's list."""
    parts = re.split(r"^## |^\*\*\d+\. ", text, flags=re.MULTILINE)[1:]
    return [
        Section(
            re.split(r"\.\*\*|\n", part)[0],
            [step for block in blocks(part, "console", "sh") for step in steps(block)],
            blocks(part, "python"),
            blocks(part, "toml"),
        )
        for part in parts
    ]


def each_once(readme: list[Section], guide: list[Section]) -> list[Section]:
    """All sections; what the guide has too is run there, and has to show what the README shows."""
    first = {(step.command, step.code): step.shows for part in readme for step in part.steps}
    for part in guide:
        for place, step in enumerate(part.steps):
            shows = first.get((step.command, step.code), ())
            part.steps[place] = step._replace(shows=step.shows + shows)
    again = {(step.command, step.code) for part in guide for step in part.steps}
    for part in readme:
        part.steps[:] = [step for step in part.steps if (step.command, step.code) not in again]
    return [part for part in readme + guide if part.steps or part.python]


SECTIONS = each_once(sections(README), sections(GUIDE))
PAGE = [part for part in sections(TUTORIAL) if part.steps]  # one story: a test does all of it
SAVED = dict(
    re.findall(r"Save this as `([\w.]+)`:\n\n```python\n(.*?)^```", BOTH, re.DOTALL | re.MULTILINE)
)


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= MOST
    contents = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        name = str(page.relative_to(ROOT / "docs"))
        assert name == "README.md" or f"({name})" in contents, name


def test_the_texts_are_read_as_they_are_meant() -> None:
    commands = [step.command for section in SECTIONS for step in section.steps]
    assert len(commands) >= 30
    assert sorted(SAVED) == ["digits.py", "stuck.py", "train.py"]
    prose = re.sub(r"^```.*?^```", "", BOTH, flags=re.DOTALL | re.MULTILINE)
    assert not re.search(r"^(?:shanty |\./dev )", prose, re.MULTILINE), "a command in no block"
    titles = re.findall(r"^\*\*(\d+)\. ", GUIDE, re.MULTILINE)
    assert titles == [str(number) for number in range(1, 11)]  # "Ten things people do"


def test_the_commands_in_the_docs_are_right() -> None:
    """Those of README and guide are run every other day, and those of the other pages are not;
    but what is in them is there each day.
    """
    found = [step.command for part in SECTIONS for step in part.steps]
    found = [command for command in found if "shanty " in command]
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        found += re.findall(r"`(shanty [^`]+)`", text)
        if page.name != "programs.md":  # which has other launchers' options
            options = re.findall(r"`(--?[a-zC]+ [^`]+)`", text)
            found += [f"shanty run {words} x.py" for words in options]
        for block in re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            lines = (line.partition("  #")[0] for line in block.splitlines())
            found += [line for line in lines if re.match(r"shanty [a-z-]", line)]
    assert len(found) >= 20
    for command in found:
        check(command)


def test_dev_knows_what_the_texts_say_of_it() -> None:
    known = set(
        re.findall(
            r"^\./dev (\w+)",
            subprocess.run(
                [ROOT / "dev", "help"], check=True, capture_output=True, text=True
            ).stdout,
            re.MULTILINE,
        )
    )
    for text in (README, (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")):
        said = set(re.findall(r"\./dev (\w+)", text))
        assert {"test", "demo"} <= said <= known


def test_the_files_that_are_named_are_there() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{target} in {page}"
    for name in re.findall(r"`(examples/[\w.]+)`", BOTH):
        assert (ROOT / name).exists(), name


def test_exit_codes_and_settings_are_those_of_the_code() -> None:
    from shanty.client.options import KEYS
    from shanty.launch.options.known import BUILTIN
    from shanty.launch.settings import Settings
    from shanty.runtime import errors

    codes = {int(code) for code in re.findall(r"^\| (\d+)[ ,]", REFERENCE, re.MULTILINE)}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    own = {kind.exit_code for kind in kinds if issubclass(kind, errors.ShantyError)}
    assert own | {errors.TIME_LIMIT_EXIT, errors.STOPPED_EXIT} <= codes
    defaults = {name: getattr(Settings(), name) for name in Settings.__slots__}
    assert not defaults.pop("targets")  # tables
    tables = {each.scheme for each in BUILTIN if each.sites}
    assert tables == set(re.findall(r"^\| `\[(\w+)\]`", REFERENCE, re.MULTILINE))
    settings = dict(re.findall(r"^\| `(\w+)` \| ([\w.]+) \|", REFERENCE, re.MULTILINE))
    assert settings == {name: str(value) for name, value in defaults.items()}
    sentence = REFERENCE[REFERENCE.index("Its table `[run]` takes") :].partition(". ")[0]
    assert set(re.findall(r"`(\w+)`", sentence)) == set(KEYS)


# ------------------------------------------------------------------------------ for real


@pytest.fixture
def workspace(shanty: Shanty) -> Shanty:
    """The folder of a reader who did what the texts say."""
    for name, body in SAVED.items():
        shanty.script(body, name)
    shanty.script("#!/bin/sh\necho ready\nmpirun -np 2 python train.py\n", "all.sh").chmod(0o755)
    (shanty.folder / "shards").mkdir()
    (shanty.folder / "shards" / "0.csv").write_text("0.5,2.5\n")
    (shanty.folder / "examples").symlink_to(ROOT / "examples")
    return shanty


@pytest.fixture
def labs(shanty: Shanty, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ends the labs that a test leaves; sockets of ssh are in a folder that goes with it."""
    folder = Path(tempfile.mkdtemp(prefix="readme-", dir="/tmp"))  # their paths must be short
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    yield
    for group in (shanty.home / "lab").glob("*"):
        shanty("lab", "down", group.name)
    wait_for(lambda: not list(folder.glob("shanty/*")), 10, "connections to the lab are left")
    shutil.rmtree(folder)


@pytest.mark.timeout(400)
@pytest.mark.sampled(3)
@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title.replace(" ", "-"))
def test_every_command_does_what_is_said(
    workspace: Shanty, section: Section, request: pytest.FixtureRequest
) -> None:
    if any("shanty lab up" in step.command for step in section.steps):
        request.getfixturevalue("labs")
    for text in section.toml:
        (workspace.folder / "shanty.toml").write_text(text)
    for number, text in enumerate(section.python):
        needs(text)
        if text not in SAVED.values():
            path = workspace.script(text, f"block{number}.py")
            if "@shanty.task" in text:  # which starts its ranks itself
                call(workspace, path)
            else:
                perform(workspace, Step(f"shanty run -n 2 block{number}.py", (), 0))
    if section.title in BEFORE:
        perform(workspace, Step(BEFORE[section.title], (), 0))
    for step in section.steps:
        perform(workspace, step)


@pytest.mark.timeout(400)
@pytest.mark.sampled(3)
def test_the_tutorial(workspace: Shanty, labs: None) -> None:
    needs("torch")
    for section in PAGE:
        for step in section.steps:
            perform(workspace, step)


def call(shanty: Shanty, path: Path) -> None:
    """Run a script as `python` does; the README's prints what its ranks add up."""
    done = subprocess.run(
        [sys.executable, path],
        cwd=shanty.folder,
        env=shanty.environ,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1.0\n[2.0, 4.0]\n"


def perform(shanty: Shanty, step: Step) -> None:
    """Do what a reader would do and see whether it is as the text has it."""
    installs, mpi = INSTALLS.fullmatch(step.command), INSTALLS_MPI.fullmatch(step.command)
    wanted = re.search(r"--mpi (\w+)", step.command)
    if installs:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert installs[1] is None or installs[1] in extras["optional-dependencies"]
        return
    if INSTALLS_ANY.fullmatch(step.command):
        return  # what others have made
    if mpi:
        assert flavours.flavour(mpi[1]).requirement
        return
    if wanted and not (mpi_folder() / wanted[1]).exists():
        return  # the other tests say what is not installed
    needs(step.command)
    assert "shanty " in step.command, f"this test does not know {step.command!r}"
    if any(words in step.command for words in ELSEWHERE):
        check(step.command)
        return
    if step.command.startswith("shanty stacks"):
        wait_for(lambda: "load_batch" in shanty("stacks").stdout)
    beside = None
    if step.command in MEANWHILE:
        known = set((shanty.home / "runs").iterdir())
        beside = threading.Thread(target=interfere, args=(shanty, MEANWHILE[step.command], known))
        beside.start()
    code, output = (at_a_terminal if "--debug" in step.command else in_a_shell)(shanty, step)
    if beside is not None:
        beside.join(60)
    cannot = "shanty lab up" in step.command and code == CANNOT
    if cannot and os.environ.get("SHANTY_TEST_LAB") != "required":
        pytest.skip(output)
    assert code == step.code, f"{step.command}\n{output}"
    if " -d " in step.command:
        wait_for(lambda: shanty.status().get("joined") == 2 or shanty.status().get("ended"))
    missing = normal(shanty, "\n".join(step.shows)) - normal(shanty, output)
    assert not missing, f"{step.command}\n{output}"


def interfere(shanty: Shanty, command: str, known: set[Path]) -> None:
    """Do what the text tells to do in another terminal, once a new run is on."""
    wait_for(lambda: set((shanty.home / "runs").iterdir()) - known, 60)
    wait_for(lambda: shanty.status().get("state") in ("running", "failed"), 60)
    in_a_shell(shanty, Step(command, (), 0))


def check(command: str) -> None:
    """Fail unless the program has this command, with these options."""
    words = shlex.split(command.replace("…", ""))
    words = words[words.index("shanty") + 1 :]
    group: click.Command = app
    try:
        # With its settings: a command keeps the help option that it is first asked for.
        context = click.Context(app, info_name="shanty", **app.context_settings)
        while isinstance(group, click.Group) and words:
            if group.invoke_without_command and words[0].startswith("-"):
                break
            _, found, words = group.resolve_command(context, words)
            assert found is not None
            group = found
        if not isinstance(group, click.Group) or group.invoke_without_command:
            given = group.make_context(group.name, words, parent=context).params
            for host in spread(given.get("on") or ""):
                assert not host or host.partition(":")[0] in (SLURM, KUBERNETES) or parse_host(host)
    except (click.MissingParameter, click.exceptions.Exit):
        pass  # a verb's name alone, or an option that is all there is to say
    except click.ClickException as error:
        raise AssertionError(f"{command}: {error.format_message()}") from None


NEEDS = {  # words of a command or script, and what must be installed for them
    "torch": ("torch", "sklearn"),
    "examples/digits": ("torch", "sklearn"),
    "xgboost": ("xgboost", "sklearn"),
}


def needs(text: str) -> None:
    wanted = {name for word, names in NEEDS.items() if word in text for name in names}
    missing = sorted(name for name in wanted if not find_spec(name))
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


def environ(shanty: Shanty) -> dict[str, str]:
    programs = str(Path(sys.executable).parent)
    return {**shanty.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


def in_a_shell(shanty: Shanty, step: Step) -> tuple[int, str]:
    done = subprocess.run(
        ["sh", "-c", step.command],
        cwd=shanty.folder,
        env=environ(shanty),
        timeout=200,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def at_a_terminal(shanty: Shanty, step: Step) -> tuple[int, str]:
    """Run a debugger's command on a terminal of its own and type `c` at the prompt."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        ["sh", "-c", step.command],
        cwd=shanty.folder,
        env=environ(shanty),
        start_new_session=True,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    output, typed, deadline = b"", False, time.monotonic() + 60
    try:
        while process.poll() is None and time.monotonic() < deadline:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    output += os.read(ours, 4096)
                except OSError:  # no one has it open any more
                    break
            if not typed and b"(pdb rank" in output:
                os.write(ours, b"c\n")
                typed = True
        return process.wait(timeout=10), output.decode(errors="replace")
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def normal(shanty: Shanty, text: str) -> set[str]:
    """The lines without what differs from one run and one machine to the next."""
    for pattern, name in (
        (re.escape(str(shanty.home)) + "|/home/ann/.shanty", "HOME"),
        (r"\d{8}-\d{6}-[a-z0-9]{4}", "ID"),
        (r"\d+\.\d+", "N"),
        (r" on \S+ (ended|is idle)", r" on HOST \1"),
    ):
        text = re.sub(pattern, name, text)
    marks = re.compile(r"(\[\d+\])?[ ~^]*")  # below a line of a traceback; each Python has its own
    return {line.rstrip() for line in text.splitlines() if not marks.fullmatch(line)}
