"""What a host says of itself: rooms, settings, leftovers. Facts that are gathered, not judged."""

from __future__ import annotations

import io
import os
import resource
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs import wait_for
from shanty.runtime import platform
from shanty.runtime.mpi import parameters
from shanty.runtime.rpc import capacity, health, reachability
from shanty.runtime.rundir import new_id

NAME = st.text("abcxyz_", min_size=1, max_size=12)
VALUE = st.text([chr(code) for code in range(33, 127) if chr(code) != '"'], min_size=1)


def unheard(_said: object) -> None:
    """Nobody listens."""


# --------------------------------------------------------------------------------- room


def test_a_folder_and_what_is_behind_it(tmp_path: Path) -> None:
    """Sizes are those of the system; nothing is left of the file that was written."""
    found = capacity.folder(str(tmp_path))
    status = os.statvfs(tmp_path)
    assert found["error"] == ""
    assert found["size"] == status.f_blocks * status.f_frsize
    assert 0 < found["free"] <= found["size"]
    assert found["device"] == tmp_path.stat().st_dev
    assert not found["readonly"]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    """It will be made, so the one above it is looked at."""
    assert capacity.folder(str(tmp_path / "not" / "yet"))["path"] == str(tmp_path)


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        assert capacity.folder(str(tmp_path))["error"] == "EACCES"
    finally:
        tmp_path.chmod(0o700)


def test_a_disk_that_is_full() -> None:
    """A limit on the size of files stands in for it."""
    program = (
        "import resource, json, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0));"
        "from shanty.runtime.rpc.capacity import folder; print(folder('/tmp')['error'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "EFBIG", done.stderr


def test_limits_are_those_of_the_process() -> None:
    program = (
        "import resource; hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1];"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (77, hard));"
        "from shanty.runtime.rpc.capacity import room;"
        "found = room({})['limits']; print(found['NOFILE'][0], found['NOFILE'][1] == hard)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["77", "True"], done.stderr
    unlimited = capacity.room({})["limits"]["AS"]
    assert unlimited[0] is None or unlimited[0] == resource.getrlimit(resource.RLIMIT_AS)[0]


@pytest.mark.skipif(not platform.LINUX, reason="counts in /proc")
def test_threads_of_the_user_are_counted() -> None:
    """RLIMIT_NPROC counts threads, not processes."""
    before = capacity._threads()
    stop = threading.Event()
    threads = [threading.Thread(target=stop.wait) for _ in range(40)]
    for thread in threads:
        thread.start()
    try:
        after = capacity._threads()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert before is not None and after is not None
    assert after >= before + 20  # others may end meanwhile


def test_the_room_of_a_run_is_cheap() -> None:
    """Every run asks for it."""
    capacity.room({})
    took = []
    for _ in range(9):
        began = time.monotonic()
        capacity.room(os.environ)
        took.append(time.monotonic() - began)
    assert min(took) < 0.02, took


# ----------------------------------------------------------------------------- settings


def test_a_file_of_parameters() -> None:
    """As `ompi_info` shows that Open MPI 4.1.8 and 5.0.11 read it."""
    text = (
        "# btl = self\n"
        "//btl = self\n"
        "  pml = ob1 \n"
        "btl = self,sm\n"
        "btl=self,tcp\n"
        "btl_tcp_if_include = ib0 # the old one\n"
        'mtl = "^ofi"\n'
        "no value\n"
        "two words = 3\n"
        "empty =\n"
    )
    assert list(parameters.parameters(text)) == [
        ("pml", "ob1"),
        ("btl", "self,tcp"),
        ("btl_tcp_if_include", "ib0 # the old one"),
        ("mtl", "^ofi"),
        ("empty", ""),
    ]


@given(st.dictionaries(NAME, VALUE, max_size=6), st.sampled_from([" = ", "=", "  =\t"]))
def test_parameters_come_back(values: dict[str, str], equals: str) -> None:
    """Whatever was written is read, in the order in which it stands."""
    text = "".join(f"{name}{equals}{value}\n# {name} = x\n\n" for name, value in values.items())
    assert dict(parameters.parameters(text)) == values


@given(st.text())
def test_no_text_upsets_the_parser(text: str) -> None:
    for name, _value in parameters.parameters(text):
        assert name and not name.startswith("#")


def test_settings_of_files_and_of_the_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OMPI_MCA_btl", "self")
    monkeypatch.setenv("FIREFOX", "none of ours")
    file = tmp_path / ".prte" / "mca-params.conf"
    file.parent.mkdir()
    file.write_text("plm_ssh_agent = /opt/old/ssh\n")
    found = [tuple(each) for each in ask()["settings"]]
    assert ("plm_ssh_agent", "/opt/old/ssh", str(file)) in found
    assert ("OMPI_MCA_btl", "self", "") in found
    assert not any(name == "FIREFOX" for name, _, _ in found)


@pytest.mark.parametrize(
    ("file", "variable", "unset"),
    [
        ("", "", set()),
        ("btl_tcp_if_exclude = lo\n", "", {"OMPI_MCA_btl_tcp_if_include"}),
        ("# btl_tcp_if_exclude = lo\n", "", set()),
        ("", "OMPI_MCA_btl_tcp_if_exclude", {"OMPI_MCA_btl_tcp_if_include"}),
        ("btl_tcp_if_include = ib0\n", "OMPI_MCA_btl", set()),
    ],
)
def test_what_a_host_sets_and_open_mpi_takes_nothing_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, variable: str, unset: set[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".openmpi").mkdir()
    (tmp_path / ".openmpi/mca-params.conf").write_text(file)
    assert parameters.overruling({variable: "x"} if variable else {}) == unset


# ------------------------------------------------------------------------------ the verb


def ask(**args: object) -> dict[str, object]:
    return health.health(args, io.BytesIO(), unheard)


def test_names_and_their_addresses() -> None:
    found = ask(names=["localhost", "no.such.name.invalid"])
    resolves = found["resolves"]
    assert isinstance(resolves, dict)
    assert set(resolves) == {socket.gethostname(), "localhost", "no.such.name.invalid"}
    assert set(resolves["localhost"]) <= {"127.0.0.1", "::1"}
    assert resolves["no.such.name.invalid"] == []


def test_rights_of_what_sshd_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    tmp_path.chmod(0o775)
    (tmp_path / ".ssh").mkdir(mode=0o700)
    assert list(health.rights()) == [
        (str(tmp_path), 0o775, os.getuid()),
        (str(tmp_path / ".ssh"), 0o700, os.getuid()),
    ]


def test_the_clock_is_told_with_what_the_question_took() -> None:
    before = time.time()
    found = ask()
    assert isinstance(found["time"], float) and isinstance(found["took"], float)
    assert before <= found["time"] <= time.time()
    assert 0 < found["took"] < 5


def test_many_names_are_looked_up_by_a_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead name server is not waited for: a name that it leaves without an answer has None."""
    dead, workers = threading.Event(), set()

    def look_up(name: str, *_: object, **__: object) -> list[object]:
        workers.add(threading.get_ident())
        if name == "dead":
            dead.wait(10)
        return [(0, 0, 0, "", (f"of {name}", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(health, "_NAMES", 0.5)
    names = [socket.gethostname(), *(f"h{n}" for n in range(300))]
    found = ask(names=[*names, "dead"])["resolves"]
    dead.set()
    assert found == {**{name: [f"of {name}"] for name in names}, "dead": None}
    assert len(workers) <= 16


# ---------------------------------------------------------------------------- leftovers


def age(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files count as old at once: nobody can set the time of a change of theirs."""
    monkeypatch.setattr(health, "_SETTLED", -1.0)
    assert path.exists()


@pytest.mark.skipif(not platform.SHARED_MEMORY, reason="no /dev/shm")
def test_segments_that_nobody_has_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "SHARED_MEMORY", str(tmp_path))
    for name in ("mpich_shm_left", "mpich_shm_open", "torch_1234"):
        (tmp_path / name).write_bytes(b"x" * 8192)
    age(tmp_path, monkeypatch)
    with (tmp_path / "mpich_shm_open").open():
        assert health.paths_left()[str(tmp_path)] == [str(tmp_path / "mpich_shm_left")]
        found = health.files_left()[str(tmp_path)]
    assert found["count"] == 1
    assert found["bytes"] >= 8192


@pytest.mark.skipif(not platform.SHARED_MEMORY, reason="no /dev/shm")
def test_young_segments_are_somebodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is just starting has made its files before it opens them."""
    monkeypatch.setattr(platform, "SHARED_MEMORY", str(tmp_path))
    (tmp_path / "mpich_shm_new").touch()
    assert str(tmp_path) not in health.paths_left()


def own_strays(run: str) -> list[int]:
    return [each["pid"] for each in health.orphans() if each["run"] == run]


@pytest.mark.skipif(not platform.LINUX, reason="reads /proc")
@pytest.mark.parametrize("name", ["start", "worker_agent", "container_lead"])
def test_a_process_of_a_run_that_ended(name: str) -> None:
    """It bears the run's mark, and nobody leads that run any more."""
    run = new_id(time.time())  # the other processes of the suite have runs as well
    words = [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, env={**os.environ, "SHANTY_RUN_ID": run}
    ) as left:
        assert left.stdout is not None
        left.stdout.readline()
        try:
            assert own_strays(run) == [left.pid]
            # an agent of that run: then it is none
            agent = [sys.executable, "-c", "import time; time.sleep(60)", f"agent.{name}", run]
            with subprocess.Popen(agent) as alive:
                wait_for(lambda: not own_strays(run), 5, "the agent goes unseen")
                alive.kill()
            wait_for(lambda: own_strays(run) == [left.pid], 5, "it is not seen any more")
        finally:
            left.kill()


@pytest.mark.skipif(not platform.LINUX, reason="reads /proc")
def test_a_process_with_another_mark_is_nobodys_business() -> None:
    environ = {**os.environ, "SHANTY_RUN_ID": "mine", "OMPI_COMM_WORLD_RANK": "0"}
    with subprocess.Popen(["sleep", "60"], env=environ) as child:
        try:
            assert child.pid not in [each["pid"] for each in health.orphans()]
        finally:
            child.kill()


@pytest.mark.skipif(not platform.LINUX, reason="reads /proc")
def test_a_rank_that_lost_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any launcher's; but not when the first process is itself a launcher."""
    script = "(exec sleep 60) >/dev/null 2>&1 & echo $!"
    done = subprocess.run(
        ["setsid", "sh", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PMI_RANK": "0"},
    )
    pid = int(done.stdout)
    try:
        found = platform.process(pid)
        assert found is not None
        monkeypatch.setattr(health, "_SETTLED", -1.0)
        monkeypatch.setattr(health, "_heirs", lambda _table: {found.parent})
        assert pid in [each["pid"] for each in health.orphans()]
        monkeypatch.setattr(health, "_heirs", lambda _table: set())
        assert pid not in [each["pid"] for each in health.orphans()]
    finally:
        os.kill(pid, 9)


# -------------------------------------------------------------------------------- trials


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in ssh's place; what it is to do is written into it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "ssh"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return program


def try_key(count: int = 1, timeout: float = 5.0) -> list[dict[str, object]]:
    hosts = [{"alias": f"shanty-{n}", "address": "10.9.9.9", "port": 22, "user": "u"}
             for n in range(count)]  # fmt: skip
    request = {"key": "secret\n", "known_hosts": "a b\n", "hosts": hosts, "timeout": timeout}
    tries: list[dict[str, object]] = reachability.try_key(request, io.BytesIO(), unheard)["tries"]
    return tries


def test_keys_are_tried_side_by_side_and_not_for_ever(ssh: Path) -> None:
    ssh.write_text('#!/bin/sh\ncase "$*" in *shanty-2*) echo in; exit 0;; esac; exec sleep 30\n')
    began = time.monotonic()
    found = try_key(3, timeout=1.0)
    assert time.monotonic() - began < 3
    assert [each["code"] for each in found] == [None, None, 0]
    assert found[2]["text"] == "in"


def test_several_hosts_are_reached_side_by_side() -> None:
    """One that does not answer keeps no other from it."""
    with (
        socket.create_server(("127.0.0.1", 0)) as good,
        socket.create_server(("127.0.0.1", 0)) as mute,
    ):

        def serve() -> None:
            connection, _ = good.accept()
            connection.sendall(b"SSH-2.0-test\r\n")
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        groups = [[["127.0.0.1", each.getsockname()[1]]] for each in (mute, good)]
        began = time.monotonic()
        found = reachability.find_ssh({"groups": groups, "timeout": 0.5}, io.BytesIO(), unheard)
        thread.join()
    assert time.monotonic() - began < 3
    silent, answered = found["answers"]
    assert silent["found"] is None
    assert answered["found"]["banner"] == "SSH-2.0-test"


def test_files_of_a_trial_are_private(monkeypatch: pytest.MonkeyPatch) -> None:
    """No one else may read the folder either; and it is gone at the end, whatever happens."""
    folders: list[Path] = []

    def fail(_host: object, key: str, _known_hosts: str, _timeout: float) -> None:
        folders.append(Path(key).parent)
        assert stat.S_IMODE(folders[0].stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in folders[0].iterdir()} == {0o600}
        raise OSError("no more processes")

    monkeypatch.setattr(reachability, "_try_ssh", fail)
    with pytest.raises(OSError, match="no more"):
        try_key()
    assert not folders[0].exists()
