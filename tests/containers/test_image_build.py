"""`shanty image build`: an environment as an image, which the engines run, and shanty too."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import signal
import subprocess
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines import ContainedShanty, Engine, long_only
from own_images import PASSWORD, USER, cleared, identity, images, registry
from runs import interruptible, wait_for

pytestmark = long_only  # an image is packed by each

SCRIPT = """
import sys, thing
from mpi4py import MPI
world = MPI.COMM_WORLD
print("sum", world.allreduce(world.rank), "of", world.size, thing.x, sys.prefix)
"""


class Builder(ContainedShanty):
    """The program with an engine, in a workspace with a small environment."""

    def __init__(self, engine: Engine, home: Path, folder: Path) -> None:
        super().__init__(home, folder)
        self.engine = engine

    @property
    def environ(self) -> dict[str, str]:
        others = ("DOCKER", "CONTAINERS_", "VIRTUAL_ENV")
        kept = {k: v for k, v in super().environ.items() if not k.startswith(others)}
        return {**kept, **self.engine.environ, "PYTHONUNBUFFERED": "1"}

    def __call__(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = super().__call__(*words, timeout=170)
        if "has Python" in done.stderr and "the packages are for" in done.stderr:
            pytest.skip(done.stderr)
        assert done.returncode == code, done.stderr
        return done

    def build(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self("image", "build", "--base", self.engine.image, *self.runtime, *words)

    @property
    def runtime(self) -> tuple[str, str]:
        return "--runtime", self.engine.name

    def unfinished(self) -> list[Path]:
        """What is half made in the store."""
        return list((self.home / "store").glob("*/.*"))


def install(environment: Path, text: str) -> None:
    """Put the package `thing` into an environment, as pip does."""
    site = next(environment.glob("lib/python3*/site-packages"))
    info = site / "thing-1.0.dist-info"
    info.mkdir(exist_ok=True)
    files = {
        site / "thing.py": text,
        info / "METADATA": "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n",
        info / "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    for path, content in files.items():
        path.write_text(content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=")
        rows.append(f"{path.relative_to(site)},sha256={digest.decode()},{len(content)}")
    (info / "RECORD").write_text("\n".join([*rows, f"{info.name}/RECORD,,", ""]))


@pytest.fixture(scope="module")
def base_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the layers of the engines' image are kept, once they have been read."""
    return tmp_path_factory.mktemp("base")


@pytest.fixture(params=["docker", "podman"])
def builder(request: pytest.FixtureRequest, tmp_path: Path, base_layers: Path) -> Iterator[Builder]:
    engine: Engine = request.getfixturevalue(request.param)
    folder = tmp_path / "My Digits"
    folder.mkdir()
    venv.create(folder / ".venv", with_pip=False)
    install(folder / ".venv", "x = 'first'\n")
    (folder / "train.py").write_text(SCRIPT)
    for name in ("store", "cache"):  # to read the base image takes longer than all else
        there = base_layers / name
        if there.is_dir():
            shutil.copytree(there, tmp_path / "home" / name, copy_function=os.link)
    found = Builder(engine, tmp_path / "home", folder)
    with cleared(engine):
        yield found
    layers = found.home / "store" / "layers"
    if layers.is_dir() and not base_layers.joinpath("store").exists():
        for name in ("store/layers", "cache/images"):
            shutil.copytree(found.home / name, base_layers / name, copy_function=os.link)


def test_an_image_is_built_once_and_runs(builder: Builder) -> None:
    dry = builder.build("--dry-run")
    assert "thing" in dry.stdout or "packages" in dry.stdout
    before = images(builder.engine)
    first = builder.build()
    assert "my-digits is built" in first.stderr
    own = identity(builder.engine, "my-digits")
    assert images(builder.engine) - before == {own}
    again = json.loads(builder.build("--json", "--tag", "my-digits:two").stdout)
    assert (again["id"], again["new"]) == (own, False)
    assert identity(builder.engine, "my-digits:two") == own
    for words in ([], ["--mpi", "image"]):
        done = builder(
            "run", "--image", "my-digits", *builder.runtime, *words, "-n", "2", "train.py"
        )
        assert done.stdout.count("sum 1 of 2 first /opt/shanty/venv") == 2
    listed = json.loads(builder("image", "list", "--json").stdout)
    (mine,) = [one for one in listed if one["id"] == own]
    assert len(mine["names"]) == 2 and mine["base"] == builder.engine.image
    removed = builder("image", "rm", "my-digits", "my-digits:two")
    assert "is removed" in removed.stderr
    assert images(builder.engine) == before


def test_only_what_is_new_becomes_a_layer(builder: Builder) -> None:
    builder.build("one")
    layers = set((builder.home / "store" / "layers").iterdir())
    (builder.folder / "train.py").write_text(SCRIPT + "print('more')\n")
    assert "is up to date" in builder.build("one").stderr  # the code is not in it
    builder.build("two", "--with-code")
    code = set((builder.home / "store" / "layers").iterdir()) - layers
    assert len(code) == 1
    assert "more" in builder.engine.run("run", "--rm", "two", "cat", "train.py").stdout
    old = identity(builder.engine, "one")
    install(builder.folder / ".venv", "x = 'second'\n")
    assert "is built" in builder.build("one").stderr
    packages = set((builder.home / "store" / "layers").iterdir()) - layers - code
    assert len(packages) == 1
    assert old not in images(builder.engine)  # it had no other name
    text = "import thing; print(thing.x)"
    said = builder.engine.run("run", "--rm", "one", "python", "-c", text)
    assert said.stdout == "second\n"


def test_what_is_built_in_two_homes_is_the_same(builder: Builder, tmp_path: Path) -> None:
    builder.build("one")
    own = identity(builder.engine, "one")
    builder("image", "rm", "one")
    other = Builder(builder.engine, tmp_path / "another home", builder.folder)
    other.build("one")
    assert identity(builder.engine, "one") == own


def test_the_packages_of_a_file(builder: Builder) -> None:
    """A package of the file that is a folder here, so that no index is asked."""
    source = builder.folder / "lib"
    source.mkdir()
    (source / "other.py").write_text("y = 5\n")
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (source / "backend.py").write_text(BACKEND)
    (builder.folder / "needs.txt").write_text("# what it needs\n./lib\n")
    builder.build("--requirements", "needs.txt")
    text = "import other; print(other.y)"
    run = ("run", "--rm", "my-digits", "python", "-c")
    assert builder.engine.run(*run, text).stdout == "5\n"
    assert builder.engine.run(*run, "import thing", check=False).returncode == 1


BACKEND = """
import zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "other-1-py3-none-any.whl"
    with zipfile.ZipFile(folder + "/" + name, "w") as wheel:
        wheel.write("other.py")
        wheel.writestr("other-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: other\\nVersion: 1\\n")
        wheel.writestr("other-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("other-1.dist-info/RECORD", "other.py,,\\nother-1.dist-info/METADATA,,\\nother-1.dist-info/WHEEL,,\\nother-1.dist-info/RECORD,,\\n")
    return name
"""  # noqa: E501


@pytest.mark.parametrize("at", ["looks into", "packs", "takes"])
def test_ctrl_c_leaves_nothing(builder: Builder, at: str) -> None:
    shutil.rmtree(builder.home / "cache" / "images", ignore_errors=True)  # all is to be done
    before = images(builder.engine)
    containers = builder.engine.run("ps", "--all", "--quiet").stdout
    words = ("image", "build", "--base", builder.engine.image, *builder.runtime)
    process = builder.start(*words, preexec_fn=interruptible)
    assert process.stderr is not None
    for line in process.stderr:
        if at.encode() in line:
            process.send_signal(signal.SIGINT)
            break
    else:
        pytest.fail(f"it never said {at!r}")
    rest = process.communicate(timeout=90)[1]
    late = at == "takes"  # it may have been at its end
    assert process.returncode in (130, 0 if late else 130), rest
    if process.returncode:
        assert images(builder.engine) == before
    assert not builder.unfinished()
    wait_for(
        lambda: builder.engine.run("ps", "--all", "--quiet").stdout == containers,
        20, "a container is left",
    )  # fmt: skip
    builder.build()
    assert identity(builder.engine, "my-digits")


def test_mistakes_are_named(builder: Builder) -> None:
    base = ("image", "build", *builder.runtime, "--base")
    image = builder.engine.image
    for words, code, text in (
        ((*base, image, "Not A Name"), 2, "invalid name for an image"),
        ((*base, "no.such.registry/x:1"), 69, "cannot be pulled"),
        ((*base, image, "--requirements", "no.txt"), 66, "not found"),
        ((*base, image, "--python", "./nowhere"), 66, "Python not found"),
        ((*base, image, "--push", "--registry-password", "env:X"), 2, "goes with"),
        (("image", "rm", "no-such-image", *builder.runtime), 66, "image no-such-image not found"),
        (("image", "rm", image, *builder.runtime), 2, "was not built by shanty"),
    ):
        assert text in builder(*words, code=code).stderr
    assert identity(builder.engine, image)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[str]:
    with registry(tmp_path) as found:
        yield found


def test_an_image_is_pushed_with_a_password(builder: Builder, host: str, tmp_path: Path) -> None:
    if builder.engine.name == "podman":
        pytest.skip("podman speaks to a registry without TLS only where the system allows it")
    name = f"{host}/me/digits:1"
    base = ("image", "build", "--base", builder.engine.image, *builder.runtime, name, "--push")
    refused = builder(*base, code=69)
    assert "does not let us have the image" in refused.stderr
    secret = tmp_path / "secret"
    secret.write_text(f"{PASSWORD}\n")
    words = ("--registry-user", USER, "--registry-password", str(secret))
    assert json.loads(builder(*base, *words, "--json").stdout)["pushed"] is True
    own = identity(builder.engine, name)
    builder("image", "rm", name)
    run = ("run", "--image", name, *builder.runtime, *words, "-n", "2", "train.py")
    assert builder(*run).stdout.count("sum 1 of 2 first") == 2
    assert identity(builder.engine, name) == own
    for path in builder.home.rglob("*"):
        if path.is_file() and path.stat().st_size < 1 << 20:
            assert PASSWORD not in path.read_text("utf-8", "replace"), path
