"""Writes the files of a lab, and the files by which ssh and `--on` find its hosts.

lab.json      its options                    hosts/HOST/home/       the user's home there
state.json    the process of the lab         hosts/HOST/etc/        its passwd, hosts, …
pids.json     first processes of the hosts   hosts/HOST/sshd.log    the output of its sshd
ssh_config    for ssh -F                     id_ed25519, known_hosts
"""

from __future__ import annotations

import grp
import pwd
import shlex
import site
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from shanty.launch.lab import machine
from shanty.launch.lab.model import Lab, LabHost
from shanty.launch.package import FOLDER
from shanty.launch.plain_json import encode
from shanty.runtime.rundir import storage_errors, write_json

_MPI_PROGRAMS = (
    "hydra_bootstrap_proxy", "hydra_pmi_proxy", "impi_info", "mpichversion", "mpiexec",
    "mpiexec.*", "mpirun", "mpirun.*", "ompi_info", "orted", "orterun", "prte", "prted",
    "prterun", "mpicc*", "mpicxx*", "mpic++*",
)  # fmt: skip
_MPI_LIBRARIES = ("libmpi.*", "libmpi_*", "libmpich*", "libmpifort*", "libopen-*", "libprrte*")
_PROGRAM_FOLDERS = ("/usr/bin", "/usr/local/bin", "/usr/sbin")
_LIBRARY_FOLDERS = ("/usr/lib", "/usr/lib64", "/usr/lib/*-linux-gnu", "/usr/local/lib")
_SSHD_CONFIG = """\
Port 22
HostKey {own}/host_key
PidFile none
UsePAM no
UseDNS no
StrictModes no
MaxStartups 200
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
X11Forwarding no
PrintMotd no
PrintLastLog no
AcceptEnv LANG LC_*
SetEnv PATH={path}
Subsystem sftp internal-sftp
"""


def python_of_system() -> str:
    """Returns the interpreter below the current environment, with Python's own packages only."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = Path(sys.base_prefix) / "bin" / version
    return str(found if found.exists() else Path(sys.executable).resolve())


def python_folders(*, packages: bool) -> tuple[str, ...]:
    """Returns the folders that this Python needs, with `packages` those of its packages too."""
    paths = [sys.base_prefix, str(Path(python_of_system()).resolve().parents[1])]
    if packages:
        paths += [sys.prefix, str(FOLDER.parent), *sys.path]
    found = [path for path in paths if path.startswith("/") and Path(path).is_dir()]
    return tuple(dict.fromkeys(each for p in found for each in (p, str(Path(p).resolve()))))


def emptied_folders(sshd: str) -> tuple[str, ...]:
    """Returns the folders of installed software that a bare host must not see."""
    packages = site.getsitepackages([sys.base_prefix, sys.base_exec_prefix, "/usr"])
    found = [*packages, "/usr/lib/python3/dist-packages"]
    found += map(str, Path("/usr/lib").glob("*-linux-gnu/openmpi"))
    if not any(place.startswith("/usr/local/") for place in (f"{sys.base_prefix}/", sshd)):
        found.append("/usr/local")
    real = {str(Path(folder).resolve()) for folder in found if Path(folder).is_dir()}
    outer = {f for f in real if not any(f != o and Path(f).is_relative_to(o) for o in real)}
    return tuple(sorted(outer))


def masked_files() -> tuple[str, ...]:
    """Returns the programs and libraries of the MPIs that are installed on this machine."""
    prefix = Path(sys.base_prefix)
    libraries = [folder for each in _LIBRARY_FOLDERS for folder in Path("/").glob(each[1:])]
    places: list[tuple[Path, tuple[str, ...]]]
    places = [(Path(folder), _MPI_PROGRAMS) for folder in (*_PROGRAM_FOLDERS, prefix / "bin")]
    places += [(folder, _MPI_LIBRARIES) for folder in (*libraries, prefix / "lib")]
    found = [p for folder, names in places for name in names for p in folder.glob(name)]
    return tuple(sorted({str(path.resolve()) for path in found if path.is_file()}))


def login(uid: int) -> tuple[str, str]:
    """Returns the name and the shell of the user; invented if the system does not know the user."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return f"user{uid}", "/bin/sh"
    usable = Path(entry.pw_shell).exists() and not entry.pw_shell.endswith(("nologin", "false"))
    return entry.pw_name, entry.pw_shell if usable else "/bin/sh"


def write(lab: Lab, keygen: str) -> None:
    """Writes all files of a lab; StorageError or CalledProcessError if that fails."""
    folder = lab.folder
    with storage_errors(folder):
        (folder / "root").mkdir()
        write_json(folder / "lab.json", encode(lab))
        for member in lab.hosts:
            (lab.files(member) / "etc").mkdir(parents=True)
            (lab.files(member) / "bin").mkdir()
            _make_home(lab, member)
        _make_keys(lab, keygen)
        public = (folder / "id_ed25519.pub").read_text()
        known = []
        for member in lab.hosts:
            files = lab.files(member)
            (files / "bin" / "python3").symlink_to(lab.python)
            (files / "sshd_config").write_text(
                _SSHD_CONFIG.format(own=machine.OWN, path=host_path(lab))
            )
            keys = files / "home" / ".ssh" / "authorized_keys"
            keys.write_text(public)
            keys.chmod(0o600)
            for name, text in _system_files(lab, member).items():
                (files / "etc" / name).write_text(text)
            kind, key, *_ = (files / "host_key.pub").read_text().split()
            known.append(f"{member.name},{lab.address(member)} {kind} {key}")
        (folder / "known_hosts").write_text(_lines(known))
        (folder / "ssh_config").write_text("# Written by `shanty lab up`.\n")


def _make_home(lab: Lab, member: LabHost) -> None:
    first = lab.hosts[0]
    if member is first or member.home != first.home:
        (lab.files(member) / "home" / ".ssh").mkdir(parents=True, mode=0o700)
    else:
        (lab.files(member) / "home").symlink_to(lab.files(first) / "home")


def host_path(lab: Lab) -> str:
    """Returns the PATH of a login on the hosts."""
    return f"{machine.OWN}/bin:{lab.path}"


def _make_keys(lab: Lab, keygen: str) -> None:
    wanted = {lab.folder / "id_ed25519": f"shanty-lab-{lab.name}"}
    wanted |= {lab.files(member) / "host_key": member.name for member in lab.hosts}
    running = [
        subprocess.Popen(
            [keygen, "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        for path, comment in wanted.items()
    ]
    codes = [process.wait() for process in running]
    if any(codes):
        raise subprocess.CalledProcessError(max(codes), keygen)


def _system_files(lab: Lab, member: LabHost) -> dict[str, str]:
    """Returns the files of /etc that differ from those of the machine."""
    name, shell = login(lab.uid)
    mine = f"{name}:x:{lab.uid}:{lab.gid}:{name}:{member.home}:{shell}"
    others = [e for e in pwd.getpwall() if e.pw_uid != lab.uid and e.pw_name != name]
    system = ((e.pw_name, "x", *e[2:]) for e in others if e.pw_uid < 1000)
    passwd = [mine, *(":".join(map(str, entry)) for entry in system)]
    if "sshd" not in {entry.pw_name for entry in others}:
        passwd.append("sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin")
    # Without a group `tty`, sshd assigns a terminal to the user's own group: the group of the
    # system does not exist in a user namespace.
    groups = [g for g in grp.getgrall() if not (lab.uid and g.gr_name == "tty")]
    group = [f"{g.gr_name}:x:{g.gr_gid}:{','.join(g.gr_mem)}" for g in groups]
    names = [f"{lab.address(host)} {host.name}" for host in lab.hosts]
    return {
        "passwd": _lines(passwd),
        "shadow": _lines(f"{line.partition(':')[0]}:*:19000:0:99999:7:::" for line in passwd),
        "group": _lines(group),
        "hosts": _lines(["127.0.0.1 localhost", "::1 localhost ip6-localhost", *names]),
        "hostname": f"{member.name}\n",
        "resolv.conf": "# A lab has no name server; its hosts are in /etc/hosts.\n",
    }


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def write_ssh_config(lab: Lab) -> None:
    """Writes the configuration with which ssh reaches the hosts."""
    folder = lab.folder
    proxy = str(Path(__file__).with_name("proxy_command.py"))
    blocks = ["# Written by `shanty lab up`: ssh -F THIS-FILE HOST"]
    for member in lab.hosts:
        address = lab.address(member)
        words = [sys.executable, "-I", "-S", proxy, str(lab.pid), lab.born, address, "22"]
        blocks.append(
            f"Host {member.name} {address}\n"
            f"    HostName {address}\n"
            f"    HostKeyAlias {member.name}\n"
            f"    User {lab.user}\n"
            f"    IdentityFile {_quoted(folder / 'id_ed25519')}\n"
            "    IdentitiesOnly yes\n"
            "    IdentityAgent none\n"
            f"    UserKnownHostsFile {_quoted(folder / 'known_hosts')}\n"
            "    GlobalKnownHostsFile /dev/null\n"
            "    StrictHostKeyChecking yes\n"
            f"    ProxyCommand {shlex.join(words).replace('%', '%%')}"
        )
    with storage_errors(folder):
        temporary = folder / ".ssh_config"
        temporary.write_text(_lines(blocks))
        temporary.replace(folder / "ssh_config")


def _quoted(path: Path) -> str:
    return '"' + str(path).replace("%", "%%") + '"'
