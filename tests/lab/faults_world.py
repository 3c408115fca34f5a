"""What faults are planted with: the console of a lab's hosts, their files, their sshd.

A fault is a context manager: what it breaks is whole again when its block ends, so that many
faults can follow each other in one lab.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conftest import LabHosts

from runs import STARTED, wait_for
from shanty.launch.lab.model import LabHost

OWN = "/run/shanty-lab"  # where a host sees its own folder of the lab
_KEPT = "/run/kept"
BARE_PLACE = "/run/bench"  # where a bare mpirun has its MPI, the same on all hosts


@dataclass
class World:
    """A lab in which faults are planted.

    `bare` says that its hosts are set up for a bare mpirun too, with a key in the home of the
    first one; then what ssh has on the machine of the command line is broken there as well.
    """

    lab: LabHosts
    bare: bool = False
    runtime: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="shanty-faults-")))
    python: str = sys.executable  # the interpreter that shanty runs in

    # --------------------------------------------------------------------------- hosts

    def member(self, host: str) -> LabHost:
        """The host as the lab knows it."""
        hosts = self.lab.shanty.known(self.lab.name).hosts
        return next(member for member in hosts if member.name == host)

    def address(self, host: str) -> str:
        """Its address on eth0."""
        return self.lab.shanty.known(self.lab.name).address(self.member(host))

    def own(self, host: str, name: str) -> Path:
        """A file of the host's folder, as it is seen from outside; its OWN/name inside."""
        return self.lab.folder / "hosts" / host / name

    def console(self, host: str, script: str) -> str:
        """What a script of sh writes on the host's console; it has to succeed."""
        done = self.lab.exec(host, "sh", "-euc", script)
        assert done.returncode == 0, f"{host}: {script}\n{done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def held(self, host: str, program: str) -> Iterator[None]:
        """Run a Python program on the host's console; it says a line once it is ready."""
        words = ("lab", "exec", host, "python3", "-c", program)
        process = self.lab.shanty.start(*words, stdin=subprocess.PIPE)
        try:
            assert process.stdout is not None
            assert process.stdout.readline(), process.communicate()
            yield
        finally:
            process.terminate()
            process.communicate(timeout=10)

    # --------------------------------------------------------------------------- files

    @contextmanager
    def text(self, path: Path, change: Callable[[str], str]) -> Iterator[None]:
        """Change a file that there is, in place: the hosts have it mounted."""
        before = path.read_text()
        after = change(before)
        assert after != before, f"nothing to change in {path}"
        path.write_text(after)
        try:
            yield
        finally:
            path.write_text(before)

    @contextmanager
    def file(self, path: Path, content: str, mode: int = 0o644) -> Iterator[None]:
        """A file that is not there otherwise."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(mode)
        try:
            yield
        finally:
            path.unlink()

    @contextmanager
    def mode(self, path: Path, mode: int) -> Iterator[None]:
        """Other permissions."""
        before = path.stat().st_mode & 0o7777
        path.chmod(mode)
        try:
            yield
        finally:
            path.chmod(before)

    @contextmanager
    def console_pair(self, host: str, do: str, undo: str) -> Iterator[None]:
        """A script that breaks something, and a script that repairs it, also after a failure."""
        try:
            self.console(host, do)
            yield
        finally:
            self.console(host, undo)

    @contextmanager
    def masked(self, host: str, paths: str, cover: str = "/dev/null") -> Iterator[None]:
        """Let `cover` be in the place of files of a host; `paths` are words of its shell."""
        do = (
            f"touch /run/masked; for path in {paths}; do "
            '[ -e "$path" ] || continue; real=$(readlink -f "$path"); '
            'grep -qx "$real" /run/masked && continue; '
            f'mount --bind {cover} "$real"; echo "$real" >>/run/masked; done'
        )
        undo = 'while read -r path; do umount "$path"; done </run/masked; rm /run/masked'
        with self.console_pair(host, do, undo):
            yield

    @contextmanager
    def memory_disk(self, host: str, place: str, options: str, fill: str = "") -> Iterator[None]:
        """Mount a new file system at a place of the host.

        The user's .ssh is there as before, and so is what is mounted below. `fill` is a script
        that runs there.
        """
        put_away = f"""mkdir -p {_KEPT}; : >{_KEPT}/moved
            for each in $(awk '$5 ~ "^{place}/" {{print $5}}' /proc/self/mountinfo | sort); do
                mountpoint -q "$each" && [ -d "$each" ] || continue
                number=$(($(wc -l <{_KEPT}/moved) + 1)); mkdir {_KEPT}/$number
                mount --move "$each" {_KEPT}/$number; echo "$each" >>{_KEPT}/moved
            done
            """
        put_back = f"""number=0
            while read -r each; do
                number=$((number + 1)); mkdir -p "$each"; mount --move {_KEPT}/$number "$each"
            done <{_KEPT}/moved
            """
        do = (
            f"{put_away} cp -a {place}/.ssh {_KEPT}/ 2>/dev/null || true\n"
            f"mount -t tmpfs -o {options} none {place}\n"
            f"if [ -d {_KEPT}/.ssh ]; then cp -a {_KEPT}/.ssh {place}/; fi\n"
            f"{put_back} rm -r {_KEPT}; cd {place}; {fill}"
        )
        undo = f"{put_away} umount -l {place}\n {put_back} rm -r {_KEPT}"
        with self.console_pair(host, do, undo):
            yield

    # --------------------------------------------------------------------------- logins

    @contextmanager
    def login_shell(self, host: str, shell: str) -> Iterator[None]:
        """Another login shell for the user, who is the first one in the file."""

        def changed(text: str) -> str:
            first, _, rest = text.partition("\n")
            return f"{first.rpartition(':')[0]}:{shell}\n{rest}"

        with self.text(self.own(host, "etc/passwd"), changed):
            yield

    @contextmanager
    def login_through(self, host: str, line: str, program: str = "/bin/bash") -> Iterator[None]:
        """A login shell that runs a line of bash before it becomes `program`."""
        script = f'#!/bin/bash\n{line}\nexec {program} "$@"\n'
        with (
            self.file(self.own(host, "shell"), script, 0o755),
            self.login_shell(host, f"{OWN}/shell"),
        ):
            yield

    # ------------------------------------------------------------------ sshd and network

    def restart_sshd(self, host: str) -> None:
        """Let a host's sshd read its files again; logins that there are stay."""
        log = self.own(host, "sshd.log")
        before = log.read_text(errors="replace").count("Server listening")
        self.console(host, "kill -HUP 1")
        wait_for(
            lambda: log.read_text(errors="replace").count("Server listening") > before,
            10,
            f"the sshd of {host} does not start again",
        )

    @contextmanager
    def sshd(
        self, host: str, *lines: str, change: Sequence[tuple[str, str]] = ()
    ) -> Iterator[None]:
        """Other settings of a host's sshd: of most, the first value in its file counts."""

        def changed(text: str) -> str:
            for old, new in change:
                assert old in text
                text = text.replace(old, new)
            return "".join(f"{line}\n" for line in lines) + text

        try:
            with self.text(self.own(host, "sshd_config"), changed):
                self.restart_sshd(host)
                yield
        finally:
            self.restart_sshd(host)

    @contextmanager
    def sshd_elsewhere(self, host: str) -> Iterator[None]:
        """Let a host's sshd listen on another port."""
        with self.sshd(host, change=[("Port 22\n", "Port 2222\n")]):
            yield

    @contextmanager
    def firewall(self, host: str, *rules: str) -> Iterator[None]:
        """Rules of nftables for what comes in on a host."""
        lines = ["add table inet planted"]
        lines.append("add chain inet planted input { type filter hook input priority 0; }")
        lines += [f"add rule inet planted input {rule}" for rule in rules]
        text = "\n".join(lines)
        do = f"nft -f - <<'END'\n{text}\nEND"
        with self.console_pair(host, do, "nft delete table inet planted"):
            yield

    # ----------------------------------------------- what belongs to the one who dials

    @property
    def known_hosts(self) -> list[Path]:
        """The files of known hosts of whoever dials."""
        return self._of_the_caller("known_hosts", "known_hosts")

    @property
    def private_keys(self) -> list[Path]:
        """The private keys of whoever dials."""
        return self._of_the_caller("id_ed25519", "id")

    def _of_the_caller(self, here: str, on_the_lead: str) -> list[Path]:
        found = [self.lab.folder / here]
        if self.bare:
            found.append(self.lab.home(self.lab.hosts[0]) / ".ssh" / on_the_lead)
        return found

    @contextmanager
    def way_to(self, host: str, change: Callable[[str], str]) -> Iterator[None]:
        """Change the part of ssh's configuration that is about one host."""

        def changed(text: str) -> str:
            before, found, rest = text.partition(f"Host {host} ")
            part, following, after = rest.partition("\nHost ")
            return before + change(found + part) + following + after

        with self.text(self.lab.config, changed):
            yield

    # --------------------------------------------------------------------------- shanty

    @property
    def mpi(self) -> Path:
        """Where an MPI of the administrator's is, here and on all hosts."""
        return self.runtime / "opt" / "mpi"

    def run(self, *words: str, timeout: float = 90) -> subprocess.CompletedProcess[str]:
        """Run `shanty WORDS…`; it finds no connection of an earlier one to share."""
        folder, work = Path(tempfile.mkdtemp(dir=self.runtime)), self.runtime / "work"
        work.mkdir(exist_ok=True)
        STARTED[words[0]] += 1
        process = subprocess.Popen(
            [self.python, "-m", "shanty", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=work,
            env={**self.lab.shanty.environ, "XDG_RUNTIME_DIR": str(folder)},
        )
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"hangs: {words}\n{out}\n{err}") from None
        finally:
            self._hang_up(folder)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def _hang_up(self, folder: Path) -> None:
        """End the connections that are kept for the next one."""
        for path in folder.glob("shanty/*"):
            words = ["ssh", "-S", str(path), "-O", "exit", "any"]
            subprocess.run(words, capture_output=True, timeout=10, check=False)
        shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Remove what the world has on this machine."""
        shutil.rmtree(self.runtime, ignore_errors=True)


Plant = Callable[[World], AbstractContextManager[Any]]
