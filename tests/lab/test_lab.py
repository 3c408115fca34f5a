"""`shanty lab`: the hosts are what they claim to be, and nothing of them outlives the lab."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runs import wait_for
from shanty.launch.lab import control
from shanty.runtime import platform
from shanty.runtime.errors import PrepareError, UsageError

MakeLab = Callable[..., Any]
REACH = "import socket, sys; socket.create_connection((sys.argv[1], 22), timeout=1).recv(4)"


def reaches(lab: Any, source: str, target: str) -> bool:
    """True when `source` can connect to the sshd of `target`."""
    done = lab.exec(source, "python3", "-c", REACH, target)
    return bool(done.returncode == 0)


def test_every_host_is_reached_by_ssh_and_has_a_home_of_its_own(lab: Any) -> None:
    homes = set()
    for host in lab.hosts:
        name, home, here, user = lab.out(host, "hostname; echo $HOME; pwd; id -un").splitlines()
        assert name == host
        assert home == here
        assert user == lab.show()["user"]
        homes.add(home)
    assert homes == {"/home/lab1", "/srv/lab2/home", "/export/users/lab3"}


def test_ssh_knows_a_host_by_its_address_too(lab: Any) -> None:
    address = lab.show()["hosts"][1]["addresses"]["eth0"]
    assert lab.out(address, "hostname") == "lab2"


def test_no_other_key_and_no_password_gets_in(lab: Any, tmp_path: Path) -> None:
    key = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    config = lab.config.read_text().replace(str(lab.folder / "id_ed25519"), str(key))
    (tmp_path / "config").write_text(config)
    words = ["ssh", "-F", tmp_path / "config", "-o", "BatchMode=yes", "lab1", "true"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 255
    assert "Permission denied (publickey)" in done.stderr


def test_hosts_find_each_other_by_name(lab: Any) -> None:
    assert all(reaches(lab, one, two) for one in lab.hosts for two in lab.hosts)


def test_each_host_has_its_own_processes_and_folders(lab: Any) -> None:
    for place in ("/tmp", "/dev/shm", "/run/lock", "/var/tmp", "~"):
        lab.out("lab1", f"touch {place}/mark && ls {place}/mark")
        assert lab.ssh("lab2", f"ls {place}/mark").returncode != 0
        assert not Path(place, "mark").exists()
    processes = lab.out("lab1", "ls /proc | grep -c '^[0-9]*$'")
    assert int(processes) < 15
    interfaces = lab.out("lab1", "cat /proc/net/dev").splitlines()[2:]
    assert sorted(line.split(":")[0].strip() for line in interfaces) == ["eth0", "lo"]


def test_the_environment_of_this_machine_is_there(lab: Any) -> None:
    program = "import shanty, click; print(shanty.__file__)"
    done = lab.ssh("lab3", f"{sys.executable} -", stdin=program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("shanty/__init__.py")


def test_a_login_can_have_a_terminal(lab: Any) -> None:
    words = lab.ssh_words("lab2", "tty")
    done = subprocess.run([*words[:1], "-tt", *words[1:]], capture_output=True, text=True)
    assert done.stdout.strip().startswith("/dev/pts/")


@pytest.mark.skipif(os.getuid() == 0, reason="root's login on a host is root")
def test_a_login_has_no_power_over_the_network(lab: Any) -> None:
    assert lab.ssh("lab1", "ip link set eth0 down").returncode != 0
    assert lab.exec("lab1", "ip", "link", "set", "eth0", "mtu", "1400").returncode == 0
    assert lab.exec("lab1", "ip", "link", "set", "eth0", "mtu", "1500").returncode == 0


def test_much_data_goes_both_ways_at_once(lab: Any) -> None:
    data = "0123456789abcdef" * (1 << 18)  # 4 MiB, more than all buffers on the way
    assert lab.ssh("lab2", "cat", stdin=data).stdout == data


def test_exec_passes_on_streams_and_exit_codes(lab: Any) -> None:
    def run(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        found: subprocess.CompletedProcess[str] = lab.shanty("lab", "exec", *words, stdin=stdin)
        return found

    done = run("lab2", "sh", "-c", "hostname; pwd; cat; echo err >&2; exit 7", stdin="in\n")
    assert (done.returncode, done.stdout) == (7, "lab2\n/srv/lab2/home\nin\n")
    assert done.stderr == "err\n"
    assert run("lab1", "sh", "-c", "kill -9 $$").returncode == 137
    assert run("lab1", "ls", "-h", "--help").stdout.startswith("Usage: ls")
    missing = run("lab1", "no-such-program")
    assert missing.returncode == 127
    assert "no-such-program cannot be run on lab1" in missing.stderr


def test_exec_hands_on_a_signal(lab: Any) -> None:
    words = ("lab", "exec", "lab1", "sh", "-c", "echo on; exec sleep 60")
    process = lab.shanty.start(*words)
    assert process.stdout.readline() == "on\n"
    process.terminate()
    process.communicate(timeout=10)
    assert process.returncode == 128 + signal.SIGTERM


def test_a_host_that_is_cut_off_is_silent_and_comes_back(lab: Any) -> None:
    lab.do("cut", "lab2")
    assert lab.state("lab2") == "cut"
    assert not reaches(lab, "lab1", "lab2")
    assert not reaches(lab, "lab2", "lab1")
    assert reaches(lab, "lab2", "lab2")
    assert lab.ssh("lab2", "true").returncode == 255
    lab.do("join", "lab2")
    assert lab.state("lab2") == "up"
    assert reaches(lab, "lab1", "lab2")
    assert lab.out("lab2", "hostname") == "lab2"


def test_a_connection_outlives_a_short_cut(lab: Any) -> None:
    words = lab.ssh_words("lab3", "cat")
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as cat:
        assert cat.stdin and cat.stdout
        for verb in ("cut", "join"):
            lab.do(verb, "lab3")
            cat.stdin.write(f"{verb}\n")
            cat.stdin.flush()
        assert [cat.stdout.readline(), cat.stdout.readline()] == ["cut\n", "join\n"]
        cat.stdin.close()
        assert cat.wait(10) == 0


def test_a_frozen_host_does_nothing_until_it_is_thawed(lab: Any) -> None:
    count = "import time\nwhile True: print(time.time(), flush=True); time.sleep(.01)"
    words = [sys.executable, "-m", "shanty", "lab", "exec", "lab2", "python3", "-c", count]
    with (
        subprocess.Popen(
            lab.ssh_words("lab2", f"python3 -c '{count}'"), stdout=subprocess.PIPE
        ) as login,
        subprocess.Popen(words, stdout=subprocess.PIPE, env=lab.shanty.environ) as console,
    ):
        assert login.stdout and console.stdout
        assert login.stdout.readline() and console.stdout.readline()
        lab.do("freeze", "lab2")
        frozen = time.time()
        assert lab.state("lab2") == "frozen"
        assert lab.ssh("lab2", "true").returncode == 255
        thawing = time.time()
        lab.do("thaw", "lab2")
        thawed = time.time()
        assert lab.state("lab2") == "up"
        for process in (login, console):
            assert process.stdout
            times = [0.0]
            while times[-1] < thawed:
                times.append(float(process.stdout.readline()))
            assert not [when for when in times if frozen < when < thawing]
            process.terminate()


def test_a_reboot_ends_all_processes_and_empties_tmp(lab: Any) -> None:
    lab.out("lab1", "touch /tmp/mark ~/mark; nohup sleep 500 >/dev/null 2>&1 &")
    lab.do("reboot", "lab1")
    assert lab.state("lab1") == "up"
    assert lab.out("lab1", "ls /tmp/mark ~/mark 2>/dev/null; true") == "/home/lab1/mark"
    assert lab.ssh("lab1", "cat /proc/[0-9]*/comm | grep sleep").returncode == 1
    assert reaches(lab, "lab2", "lab1")


def test_a_reboot_of_a_host_that_is_cut_off_does_not_connect_it(lab: Any) -> None:
    lab.do("cut", "lab1")
    lab.do("reboot", "lab1")
    assert lab.state("lab1") == "cut"
    assert not reaches(lab, "lab2", "lab1")
    lab.do("join", "lab1")
    assert reaches(lab, "lab2", "lab1")


def test_a_bare_host_has_sshd_and_a_python_and_nothing_else(make_lab: MakeLab) -> None:
    lab = make_lab(2, "--bare")
    program = (
        "import sys, importlib.util as u, venv\n"
        "print(sys.version_info >= (3, 9), sys.prefix == sys.base_prefix)\n"
        "print([n for n in ('click', 'mpi4py', 'numpy', 'pytest', 'shanty') if u.find_spec(n)])"
    )
    done = lab.ssh("lab2", "python3 -", stdin=program)
    assert done.stdout == "True True\n[]\n", done.stderr
    names = "mpirun mpiexec mpiexec.hydra orterun prterun prted ompi_info mpichversion shanty"
    program = f"import shutil; print([n for n in {names.split()} if shutil.which(n)])"
    assert lab.ssh("lab1", "python3 -", stdin=program).stdout == "[]\n"
    if sys.prefix != sys.base_prefix:
        assert lab.ssh("lab1", f"ls {sys.prefix}").returncode != 0
    assert lab.ssh("lab1", f"ls '{lab.shanty.home}'").returncode != 0
    assert lab.out("lab1", "ls -A ~") == ".ssh"
    assert lab.out("lab1", "ls -A ~/.ssh") == "authorized_keys"
    assert lab.out("lab1", "ls -A /tmp") == ""
    assert lab.out("lab1", "python3 -m venv --without-pip /tmp/v && /tmp/v/bin/python -c ''") == ""


# In a mount namespace, where /etc is a copy: the machine's own is left alone.
REPLACE = """
set -e
mkdir "$1/etc"; cp -a /etc/. "$1/etc"; mount --bind "$1/etc" /etc
"$2" -m shanty lab up 2 --name rp
for file in passwd group shadow nsswitch.conf hosts resolv.conf; do
    [ -f /etc/$file ] || continue
    cp -p /etc/$file /etc/.new; mv /etc/.new /etc/$file
done
echo new >>/etc/motd
ssh -F "$SHANTY_HOME/lab/rp/ssh_config" rp2 \\
    'cd && pwd; hostname; tail -n 1 /etc/motd; getent hosts rp1'
"$2" -m shanty lab down rp
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root may replace files in /etc")
def test_files_of_the_machine_may_be_replaced(lab_home: Any, tmp_path: Path) -> None:
    """As useradd and apt do: by another file of that name, which removes what is mounted there."""
    work = tmp_path / "replaced"
    work.mkdir()
    words = ["unshare", "-m", "sh", "-c", REPLACE, "sh", str(work), sys.executable]
    done = subprocess.run(
        words, env=lab_home.environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    at = lines.index("/srv/rp2/home")
    assert lines[at + 1 : at + 3] == ["rp2", "new"]
    assert lines[at + 3].split()[-1] == "rp1"


def test_a_second_network_and_a_slow_one(make_lab: MakeLab) -> None:
    lab = make_lab(2, "--nic", "tb0", "--rate", "eth0=80mbit")
    first, second = lab.show()["hosts"]
    assert set(first["addresses"]) == {"eth0", "tb0"}
    server = (
        "import socket\n"
        "server = socket.create_server(('', 7000))\n"
        "print('on', flush=True)\n"
        "for _ in range(2):\n"
        "    peer = server.accept()[0]\n"
        "    while peer.recv(1 << 16): pass\n"
        "    peer.close()\n"
    )
    client = (
        "import socket, sys, time\n"
        "began = time.monotonic()\n"
        "peer = socket.create_connection((sys.argv[1], 7000), timeout=5)\n"
        "peer.sendall(bytes(4_000_000)); peer.shutdown(socket.SHUT_WR); peer.recv(1)\n"
        "print(time.monotonic() - began)\n"
    )
    with subprocess.Popen(
        lab.ssh_words("lab2", f'exec timeout 30 python3 -c "{server}"'),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout and process.stdout.readline() == "on\n"
        took = {}
        for nic, address in second["addresses"].items():
            done = lab.exec("lab1", "python3", "-c", client, address)
            assert done.returncode == 0, done.stderr
            took[nic] = float(done.stdout)
        assert process.wait(10) == 0
    assert took["eth0"] > 0.25  # 32 Mbit, of which a burst of 1 Mbit is free
    assert took["tb0"] < took["eth0"] / 2


def test_two_labs_at_once_have_networks_of_their_own(make_lab: MakeLab) -> None:
    one, two = make_lab(1), make_lab(2, "--name", "east", "--slots", "2")
    assert one.hosts == ["lab1"]
    assert two.hosts == ["east1", "east2"]
    assert one.show()["nics"][0]["network"] != two.show()["nics"][0]["network"]
    assert two.out("east2", "hostname") == "east2"
    group = json.loads((one.shanty.home / "hosts" / "east.json").read_text())
    assert group["lab"] is True
    assert [(host["name"], host["slots"]) for host in group["hosts"]] == [
        ("east1", 2),
        ("east2", 2),
    ]
    assert {host["config"] for host in group["hosts"]} == {str(two.config)}
    listed = json.loads(one.shanty("lab", "list", "--json").stdout)
    assert [entry["name"] for entry in listed] == ["east", "lab"]
    assert one.shanty("lab", "down", "east").returncode == 0
    assert one.out("lab1", "hostname") == "lab1"


def test_a_lab_that_is_up_is_not_made_again(make_lab: MakeLab) -> None:
    lab = make_lab(1)
    again = lab.shanty("lab", "up", "2")
    assert again.returncode == 2
    assert "the lab lab is already running" in again.stderr
    assert lab.out("lab1", "hostname") == "lab1"
    assert os.getsid(lab.shanty.known().pid) != os.getsid(0)  # it outlives the terminal


def test_a_group_of_that_name_is_not_overwritten(lab_home: Any) -> None:
    group = lab_home.home / "hosts" / "mine.json"
    group.parent.mkdir()
    group.write_text('{"hosts": []}')
    done = lab_home("lab", "up", "1", "--name", "mine")
    assert done.returncode == 2
    assert "mine is the name of a group of hosts" in done.stderr
    assert lab_home("lab", "down", "mine").returncode == 66
    assert group.read_text() == '{"hosts": []}'
    group.unlink()


@pytest.mark.parametrize(
    ("wish", "text"),
    [
        ({"count": 0}, "a lab has 1 to 200 hosts"),
        ({"count": 201}, "a lab has 1 to 200 hosts"),
        ({"name": "Lab 1"}, "invalid name of a lab: 'Lab 1'"),
        ({"name": "lab2"}, "invalid name of a lab: 'lab2'"),
        ({"nics": ["eth0"]}, "given twice"),
        ({"nics": ["../x"]}, "invalid name of an interface"),
        ({"rates": ["tb0=1gbit"]}, "invalid --rate tb0=1gbit"),
        ({"rates": ["eth0=fast"]}, "invalid --rate eth0=fast"),
        ({"slots": 0}, "--slots must be 1 or more"),
    ],
)
def test_an_invalid_wish_is_refused(tmp_path: Path, wish: dict[str, Any], text: str) -> None:
    usual = {"name": "lab", "count": 2, "nics": (), "rates": (), "slots": None}
    with pytest.raises(UsageError, match=text):
        control.up(tmp_path, **{**usual, **wish}, progress=print, bare=False)
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_there_is_named(lab_home: Any) -> None:
    for words in (("down",), ("show", "east"), ("exec", "lab7", "true"), ("cut", "lab7")):
        done = lab_home("lab", *words)
        assert done.returncode == 66
        assert "not found: " in done.stderr


def test_down_ends_a_frozen_host_and_what_goes_on_there(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    login = subprocess.Popen(lab.ssh_words("lab1", "sleep 500"), stderr=subprocess.DEVNULL)
    console = lab.shanty.start("lab", "exec", "lab2", "sleep", "500")
    wait_for(
        lambda: all(
            lab.exec(host, "sh", "-c", "cat /proc/[0-9]*/comm").stdout.count("sleep")
            for host in lab.hosts
        ),
        10,
        "the sleeps do not start",
    )
    lab.out("lab2", "mkdir ~/locked; touch ~/locked/file; chmod 0 ~/locked")
    lab.do("freeze", "lab2")
    done = lab.shanty("lab", "down")
    assert done.returncode == 0, done.stderr
    assert login.wait(5) == 255
    console.communicate(timeout=5)
    assert console.returncode == 128 + signal.SIGKILL
    assert not lab.folder.exists()
    assert not (lab.shanty.home / "hosts" / "lab.json").exists()


def test_a_lab_whose_process_died_is_shown_as_gone_and_made_again(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    known = lab.shanty.known()
    os.kill(known.pid, signal.SIGKILL)
    wait_for(lambda: not known.alive, 10, "the lab does not end")
    assert lab.state("lab1") == "gone"
    assert re.search(r"lab +gone +2", lab.shanty("lab", "list").stdout)
    assert "lab1 is gone" in lab.shanty("lab", "exec", "lab1", "true").stderr
    assert "this lab is gone" in lab.ssh("lab1", "true").stderr
    make_lab(1)
    assert lab.hosts == ["lab1"]
    assert lab.out("lab1", "hostname") == "lab1"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_up_leaves_no_process(make_lab: MakeLab, number: signal.Signals) -> None:
    lab = make_lab(1)  # skips where there can be no lab
    home = lab.shanty
    process = home.start("lab", "up", "60", "--name", "big", start_new_session=True)
    folder = home.home / "lab" / "big"
    wait_for(lambda: (folder / "switch.log").exists(), 20, "it does not start")
    os.killpg(process.pid, number)
    process.communicate(timeout=20)
    wait_for(lambda: not platform.with_argument(str(folder)), 20, "its process is left")
    if number == signal.SIGINT:
        assert process.returncode in (1, 130)  # 1 is click's
        assert not folder.exists()
    else:
        assert home("lab", "up", "1", "--name", "big").returncode == 0
        home.remember("big")


def test_a_kernel_that_forbids_it_is_named(make_lab: MakeLab) -> None:
    lab = make_lab(1)  # skips where not even this test's own user namespace can be made
    words = ["unshare", "--user", "--map-user=1000", "--keep-caps", "sh", "-c"]
    script = "echo 0 >/proc/sys/user/max_user_namespaces; "
    script += 'exec "$0" -m shanty lab up 1 --name none'
    done = subprocess.run(
        [*words, script, sys.executable], capture_output=True, text=True, env=lab.shanty.environ
    )
    assert done.returncode == 69, done.stderr
    assert "the kernel setting user.max_user_namespaces is 0" in done.stderr
    assert "sudo sysctl -w user.max_user_namespaces=15000" in done.stderr
    assert not (lab.shanty.home / "lab" / "none").exists()


def test_missing_programs_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(control, "_SYSTEM_PATH", "/nowhere")
    with pytest.raises(PrepareError) as caught:
        control.programs(("sshd", "ip", "tc"))
    assert "a lab needs sshd, ip, tc" in caught.value.what
    assert "apt-get install iproute2 openssh-server" in caught.value.fix
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(PrepareError, match="a lab needs Linux"):
        control.programs(("sshd",))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kernel.unprivileged_userns_clone", "0"),
        ("kernel.apparmor_restrict_unprivileged_userns", "1"),
    ],
)
def test_settings_of_other_kernels_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    path = tmp_path / "proc/sys" / name.replace(".", "/")
    path.parent.mkdir(parents=True)
    path.write_text(f"{value}\n")
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    error = control.forbidden("Operation not permitted", 1, tmp_path)
    assert f"{name} is {value}" in error.why
    assert error.fix.startswith(f"sudo sysctl -w {name}=")


def test_a_container_that_forbids_it_is_named(tmp_path: Path) -> None:
    error = control.forbidden("unshare failed: Operation not permitted", None, tmp_path)
    assert "--privileged" in error.fix


def test_runs_whose_hosts_are_cut_off_or_no_more(make_lab: MakeLab) -> None:
    """What can be stopped is, what cannot be reached can be forgotten, and all end with the lab."""
    lab = make_lab(2)
    words = ("run", "-d", "-n", "1", "--on")
    one, two = (
        lab.shanty(*words, host, "--name", host, "sleep", "500").stdout.strip()
        for host in lab.hosts
    )
    wait_for(lambda: states(lab) == {"lab1": "running", "lab2": "running"}, 60)
    lab.do("cut", "lab1")
    done = lab.shanty("stop", "--all", timeout=120)
    assert done.returncode != 0
    assert f"run {one}: " in done.stderr
    assert f"run {two}: stopped" in done.stderr
    assert f"shanty rm --force {one}" in done.stderr
    assert "is still on" in lab.shanty("rm", one, timeout=60).stderr
    done = lab.shanty("rm", "--force", one, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not (lab.shanty.home / "runs" / one).exists()
    lab.do("join", "lab1")
    lab.shanty(*words, "lab2", "--name", "night", "sleep", "500")
    wait_for(lambda: states(lab)["night"] == "running", 60)
    done = lab.shanty("lab", "down")
    assert "was on there, and has ended with it" in done.stderr
    assert states(lab) == {"lab2": "stopped", "night": "lost"}
    assert "the lab lab was ended during the run" in lab.shanty("show").stdout
    assert lab.shanty("rm", "lab2", "night").returncode == 0


def states(lab: Any) -> dict[str, str]:
    lines = lab.shanty("ps", "--json").stdout.splitlines()
    return {run["name"]: run["state"] for run in map(json.loads, lines)}
