"""Translates a user's line for Hydra: MPICH or Intel MPI."""

from __future__ import annotations

import re
from typing import List, NoReturn, Optional, Sequence

from shanty.runtime.mpi import parameters
from shanty.runtime.mpi.hostfiles import Named, hosts_in, listed
from shanty.runtime.mpi.hydra import Hydra
from shanty.runtime.mpi.layout import HostSlots
from shanty.runtime.mpi.parser import Given
from shanty.runtime.mpi.placement import MACHINE_PARTS, Placement
from shanty.runtime.mpi.translation import Translator, Words

# What of a program's options Hydra takes as its own; all others count for the whole job.
_LOCAL = frozenset(["env", "envlist", "envall", "envnone", "envexcl", "wdir", "gwdir", "path", "x"])

_TRANSPORT = frozenset((
    "accelerator", "allocator", "bml", "btl", "coll", "common", "hcoll", "memory", "mpi", "mpool",
    "mtl", "opal", "openib", "op", "osc", "pml", "rcache", "topo", "ucc", "ucx", "vprotocol",
))  # fmt: skip

# The fields of a placement that Hydra can have once only, and what the words for them are under.
_COMMON = ("by", "per_part", "cores", "oversubscribe", "rank_by", "bind", "hostfile")
_SAID = {"by": "map-by", "per_part": "map-by", "cores": "map-by", "bind": "bind-to",
         "rank_by": "rank-by"}  # fmt: skip


class ToHydra(Translator[Hydra]):
    """A line in Hydra's dialect; most options count for all programs there and come first."""

    dashes = "-"
    one_tag = True

    def is_local(self, option: Given) -> bool:
        """Returns True for the options that Hydra lets each of several programs have."""
        return option.name in _LOCAL and not self.single

    def assembled(
        self, places: List[Placement], written: List[Words], programs: List[Words]
    ) -> Words:
        """Returns the words of all programs in order, with ":" between them."""
        place = self.common(places)
        for one in places:
            self.count(one, place)
        argv = [*self.hosts(place), *self.bound(place), *self.everywhere]
        for at, (one, words, program) in enumerate(zip(places, written, programs)):
            argv += [":"] if at else []
            if one.hosts and not place.hosts:
                argv += ["-host", one.hosts[0].name]
            if one.ranks is not None:
                argv += ["-n", str(one.ranks)]
            argv += [*words, *program]
        return argv

    # --------------------------------------------------------------------- placement

    def common(self, places: List[Placement]) -> Placement:
        """Returns the placement of all programs together; refuses different ones."""
        common = Placement()
        for place in places:
            for field in _COMMON:
                wanted = getattr(place, field)
                if wanted in (None, ""):
                    continue
                if getattr(common, field) not in (None, "", wanted):
                    self.differ(place.said.get(_SAID.get(field, field), f"--hostfile {wanted}"))
                setattr(common, field, wanted)
            common.fills = common.fills or place.fills
            common.modifiers += place.modifiers
            common.said.update(place.said)
        lists = [place for place in places if place.hosts]
        if len({place.hosts for place in lists}) == 1 and (lists[0] is places[0] or self.single):
            common.hosts, common.hosts_fill = lists[0].hosts, lists[0].hosts_fill
        elif lists and not (self.flavour.host_for_each and all(len(p.hosts) == 1 for p in places)):
            self.differ(lists[0].said["host"])
        return common

    def differ(self, words: str) -> NoReturn:
        """Refuses a line whose programs are placed differently."""
        self.refuse(
            words,
            "it is not the same for all programs of the line",
            "say it once, before the first program",
        )

    def count(self, one: Placement, place: Placement) -> None:
        """Sets the number of ranks of a program whose options do not say it."""
        if one.ranks is not None or not self.single:
            return
        self.decided_ranks(one)
        if one.ranks is None:
            hosts = self.own_hosts(place)
            if place.per_part is not None and not place.fills and place.by == "node":
                one.ranks = place.per_part * len(hosts)
            else:
                one.ranks = sum(host.slots for host in hosts)
            if one.ranks < 1:
                one.ranks = None
                return
            self.note(f"the line names no number of ranks: {one.ranks} fill its hosts")

    def hosts(self, place: Placement) -> Words:
        """Returns the options that say which hosts there are and how many ranks each gets."""
        per_host = self.per_host(place)
        words = [] if per_host is None else ["-ppn", str(per_host)]
        if place.hosts:
            return self.listed_hosts(place, words)
        path = place.hostfile
        if not path and self.flavour.slots_flag != self.flavour.per_host_flag and per_host is None:
            # Taken from the environment, the numbers in the run's host file do not count.
            users = self.given.get(self.flavour.hostfile_variable, self.layout.hostfile)
            if not self.layout.local_only and users == self.layout.hostfile:
                path = self.layout.hostfile
        if path:
            flag = self.flavour.slots_flag if per_host is None else self.flavour.per_host_flag
            words = [flag, path, *words]
        self.leave_the_host(place)
        return words

    def listed_hosts(self, place: Placement, words: Words) -> Words:
        """Returns -hosts, or a host file where hosts get different numbers that it cannot say."""
        hosts: Sequence[Named] = place.hosts
        if place.hostfile:
            known = {h.name: h.slots for h in self.own_hosts(Placement(hostfile=place.hostfile))}
            hosts = [Named(h.name, h.slots or known.get(h.name)) for h in hosts]
            self.note(f"the host file {place.hostfile} is left out: the line lists its hosts")
        self.leave_the_host(place)
        names = listed(Named(host.name) for host in hosts)
        numbers = {host.count for host in hosts}
        if words or (place.hosts_fill and all(host.slots is None for host in hosts)):
            return ["-hosts", names, *words]
        if self.flavour.hosts_have_slots:
            return ["-hosts", names if numbers == {1} else listed(hosts)]
        if len(numbers) == 1:
            return ["-hosts", names, "-ppn", str(numbers.pop())]
        text = [HostSlots(host.name, host.count) for host in hosts]
        return [self.flavour.slots_flag, self.written(text, f"the list of hosts {listed(hosts)}")]

    def leave_the_host(self, place: Placement) -> None:
        """Undoes what a run on one host sets, where the line brings hosts of its own."""
        runs = {host.name for host in self.layout.hosts}
        if not self.layout.local_only or {host.name for host in self.own_hosts(place)} <= runs:
            return
        alone = dict(self.flavour.one_host)
        for name, value in self.flavour.many_hosts:
            if self.given.get(name, alone.get(name)) == alone.get(name):
                self.environment[name] = value

    def per_host(self, place: Placement) -> Optional[int]:
        """Returns how many ranks a host gets before the next; None for as many as it has slots."""
        words = place.said.get("map-by", "--map-by")
        for modifier in place.modifiers:
            if "=" in modifier:
                self.refuse(words, "Hydra has no such mapping")
            elif modifier == "NOLOCAL":
                self.everywhere += self.option(Given("nolocal", words, ()), place)
            else:
                self.note(f"{words}: {modifier} is left out, Hydra has no such mapping")
        if place.rank_by == "node" and place.by != "node":
            self.note(f"{place.said['rank-by']}: ranks go to the hosts in turn")
            return 1
        if place.rank_by not in ("", "slot", "node"):
            self.note(
                f"{place.said['rank-by']} is left out: Hydra numbers a host's ranks in their order"
            )
        if place.by == "node":
            return place.per_part or 1
        if place.per_part is not None:
            self.refuse(
                words,
                f"Hydra cannot count ranks by {place.by}",
                "give a number of ranks a host, as --map-by ppr:2:node",
            )
        if place.by == "slot":
            self.note(f"{words}: dealing ranks out by slots is what Hydra does anyway")
        elif place.by and place.by not in MACHINE_PARTS:
            self.refuse(words, "Hydra has no such mapping", "map by slot or by node")
        return None

    def bound(self, place: Placement) -> Words:
        """Returns the options, or sets the variables, that bind each rank to a part of its host."""
        if place.oversubscribe is not None:
            words = place.said.get("oversubscribe", place.said.get("map-by", "oversubscribe"))
            self.note(f"{words}: Hydra starts as many ranks as it is told to, whatever the slots")
        part = place.bind or ("core" if place.cores is not None else "")
        by = place.by if place.by in MACHINE_PARTS else ""
        if by and (part in ("", "none") or not self.flavour.bind_to_flag):
            self.note(f"{place.said['map-by']} makes no difference to {self.flavour.title}")
            by = ""
        if not part:
            return []
        words = place.said.get("bind-to", place.said.get("map-by", "--bind-to"))
        if self.flavour.bind_to_flag:
            if part in ("board", "cpu-list"):
                self.refuse(words, "it does not bind to that", "bind to core or socket")
            number = f":{place.cores}" if place.cores is not None and part == "core" else ""
            return ["-bind-to", part + number, *(["-map-by", by] if by else [])]
        kind, _, cpus = part.partition(":")
        settings = self.flavour.bindings.get(kind)
        if settings is None or (cpus and not re.match(r"^[\d,-]+$", cpus)):
            self.refuse(words, "it does not bind to that", "bind to core or socket")
        if place.cores is not None and part == "core":
            settings, cpus = self.flavour.binding, str(place.cores)
        now = {name: value.replace("{}", cpus) for name, value in settings}
        self.environment.update(now)
        self.note(f"{words} is " + " ".join(f"{k}={v}" for k, v in now.items()))
        return []

    def needs_conversion(self, text: str) -> bool:
        """Returns True when a host file is not in this dialect, or has hosts without slots.

        MPICH divides by the number of slots.
        """
        return super().needs_conversion(text) or any(h.slots == 0 for h in hosts_in(text))

    # ------------------------------------------------------------------- environment

    def do_export(self, option: Given, _: str, __: Placement) -> Words:
        """Takes Open MPI's -x: a value is set, a name alone is there anyway."""
        name, equals, value = option.value.partition("=")
        if not equals:
            self.dropped(option, "Hydra passes the whole environment on")
            return []
        self.note(f"{option.said} is {'-genv' if self.single else '-env'} {name} {value}")
        return ["-genv" if self.single else "-env", name, value]

    def do_path_variable(self, option: Given, _: str, __: Placement) -> Words:
        """Sets where programs are looked for."""
        path = ":".join(part for part in (option.value, self.given.get("PATH", "")) if part)
        self.note(f"{option.said} is put before PATH")
        return ["-genv" if self.single else "-env", "PATH", path]

    # ------------------------------------------------------------------- MCA parameters

    def do_mca(self, option: Given, _: str, __: Placement) -> Words:
        """Translates the few parameters of Open MPI that Hydra has something for."""
        name, value = option.values
        if name in parameters.AS_OPTIONS:
            return []
        if name in parameters.LAUNCH_INTERFACES or name in parameters.RANK_INTERFACES:
            return self.interface(option, value)
        if name in parameters.SSH_PROGRAM:
            program, *arguments = value.split(":")[0].split() or [""]
            if arguments:
                self.environment[self.flavour.extra_ssh_variable] = " ".join(arguments)
            self.note(f"{option.said} is -launcher-exec")
            return ["-launcher-exec", program] if program else []
        if name in parameters.SSH_ARGUMENTS:
            return self.do_ssh_arguments(option, "", __)
        what = "transport" if name.split("_")[0] in _TRANSPORT else "inside"
        self.dropped(option, f"it is about Open MPI's own {what}")
        return []

    def interface(self, option: Given, value: str) -> Words:
        """Returns -iface; it takes one name, and no network."""
        names = [part for part in value.split(",") if part and "/" not in part]
        if not names:
            self.refuse(option, "Hydra knows interfaces by name only", "write the name, as eth0")
        if option.values[0] in parameters.RANK_INTERFACES:
            self.rank_interface(names[0])
        before = self.once.setdefault("-iface", names[0])
        if before != names[0]:
            self.dropped(option, f"Hydra uses one interface for all, and that is {before}")
            return []
        if "-iface" in self.everywhere:
            return []
        self.note(f"{option.said} is -iface {names[0]}, for the launcher and for the ranks")
        return ["-iface", names[0]]

    def do_iface(self, option: Given, _: str, __: Placement) -> Words:
        """Sets the interface of the launcher and of the ranks."""
        self.once["-iface"] = option.value
        self.rank_interface(option.value)
        return [] if "-iface" in self.everywhere else ["-iface", option.value]

    def rank_interface(self, name: str) -> None:
        """Has the ranks talk over an interface, of which -iface itself tells the launcher only."""
        ranks = self.flavour.rank_networks if self.layout.tcp_only else self.flavour.over_fabrics
        for variable in ranks:
            if variable not in self.given:
                self.environment.setdefault(variable, name)

    def do_intel_tune(self, option: Given, _: str, __: Placement) -> Words:
        """Takes Intel's own -tune FILE; the same name with two dashes is Open MPI's."""
        if option.spelled.startswith("--"):
            self.refuse(option, "it is a file with settings of Open MPI", "leave it out")
        return ["-tune", option.value]

    # -------------------------------------------------------------- start, input and end

    def do_timeout(self, option: Given, _: str, __: Placement) -> Words:
        """Sets the job's time limit in seconds."""
        self.environment["MPIEXEC_TIMEOUT"] = option.value
        self.note(f"{option.said} is MPIEXEC_TIMEOUT={option.value} for Hydra")
        return []

    def do_stdin_of_the_first(self, option: Given, _: str, __: Placement) -> Words:
        """Checks that rank 0 is to get the input: MPICH gives it to no other."""
        if option.value not in ("0", "none"):
            self.refuse(option, "only rank 0 gets the input", "read it there and broadcast it")
        self.dropped(option, "rank 0 gets the input, and no other")
        return []

    def do_ssh_arguments(self, option: Given, _: str, __: Placement) -> Words:
        """Sets arguments for ssh, for which MPICH has no option."""
        self.environment[self.flavour.extra_ssh_variable] = option.values[-1]
        self.note(f"{option.said} is {self.flavour.extra_ssh_variable}")
        return []
