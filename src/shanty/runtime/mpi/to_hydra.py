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

    def _is_local(self, option: Given) -> bool:
        """Returns True for the options that Hydra lets each of several programs have."""
        return option.name in _LOCAL and not self.single

    def _assembled(
        self, places: List[Placement], written: List[Words], programs: List[Words]
    ) -> Words:
        place = self._common(places)
        for one in places:
            self._count(one, place)
        argv = [*self._hosts(place), *self._bound(place), *self.everywhere]
        for at, (one, words, program) in enumerate(zip(places, written, programs)):
            argv += [":"] if at else []
            if one.hosts and not place.hosts:
                argv += ["-host", one.hosts[0].name]
            if one.ranks is not None:
                argv += ["-n", str(one.ranks)]
            argv += [*words, *program]
        return argv

    # --------------------------------------------------------------------- placement

    def _common(self, places: List[Placement]) -> Placement:
        """Returns the placement of all programs together; refuses different ones."""
        common = Placement()
        for place in places:
            for field in _COMMON:
                wanted = getattr(place, field)
                if wanted in (None, ""):
                    continue
                if getattr(common, field) not in (None, "", wanted):
                    self._differ(place.said.get(_SAID.get(field, field), f"--hostfile {wanted}"))
                setattr(common, field, wanted)
            common.fills = common.fills or place.fills
            common.modifiers += place.modifiers
            common.said.update(place.said)
        lists = [place for place in places if place.hosts]
        if len({place.hosts for place in lists}) == 1 and (lists[0] is places[0] or self.single):
            common.hosts, common.hosts_fill = lists[0].hosts, lists[0].hosts_fill
        elif lists and not (self.flavour.host_for_each and all(len(p.hosts) == 1 for p in places)):
            self._differ(lists[0].said["host"])
        return common

    def _differ(self, words: str) -> NoReturn:
        self._refuse(
            words,
            "it is not the same for all programs of the line",
            "say it once, before the first program",
        )

    def _count(self, one: Placement, place: Placement) -> None:
        if one.ranks is not None or not self.single:
            return
        self._decided_ranks(one)
        if one.ranks is None:
            hosts = self._own_hosts(place)
            if place.per_part is not None and not place.fills and place.by == "node":
                one.ranks = place.per_part * len(hosts)
            else:
                one.ranks = sum(host.slots for host in hosts)
            if one.ranks < 1:
                one.ranks = None
                return
            self._note(f"the line names no number of ranks: {one.ranks} fill its hosts")

    def _hosts(self, place: Placement) -> Words:
        per_host = self._per_host(place)
        words = [] if per_host is None else ["-ppn", str(per_host)]
        if place.hosts:
            return self._listed_hosts(place, words)
        path = place.hostfile
        if not path and self.flavour.slots_flag != self.flavour.per_host_flag and per_host is None:
            # Taken from the environment, the numbers in the run's host file do not count.
            users = self.given.get(self.flavour.hostfile_variable, self.layout.hostfile)
            if not self.layout.local_only and users == self.layout.hostfile:
                path = self.layout.hostfile
        if path:
            flag = self.flavour.slots_flag if per_host is None else self.flavour.per_host_flag
            words = [flag, path, *words]
        self._leave_the_host(place)
        return words

    def _listed_hosts(self, place: Placement, words: Words) -> Words:
        """Returns -hosts, or a host file where hosts get different numbers that it cannot say."""
        hosts: Sequence[Named] = place.hosts
        if place.hostfile:
            known = {h.name: h.slots for h in self._own_hosts(Placement(hostfile=place.hostfile))}
            hosts = [Named(h.name, h.slots or known.get(h.name)) for h in hosts]
            self._note(f"the host file {place.hostfile} is left out: the line lists its hosts")
        self._leave_the_host(place)
        names = listed(Named(host.name) for host in hosts)
        numbers = {host.count for host in hosts}
        if words or (place.hosts_fill and all(host.slots is None for host in hosts)):
            return ["-hosts", names, *words]
        if self.flavour.hosts_have_slots:
            return ["-hosts", names if numbers == {1} else listed(hosts)]
        if len(numbers) == 1:
            return ["-hosts", names, "-ppn", str(numbers.pop())]
        text = [HostSlots(host.name, host.count) for host in hosts]
        return [self.flavour.slots_flag, self._written(text, f"the list of hosts {listed(hosts)}")]

    def _leave_the_host(self, place: Placement) -> None:
        """Undoes what a run on one host sets, where the line brings hosts of its own."""
        runs = {host.name for host in self.layout.hosts}
        if not self.layout.local_only or {host.name for host in self._own_hosts(place)} <= runs:
            return
        alone = dict(self.flavour.one_host)
        for name, value in self.flavour.many_hosts:
            if self.given.get(name, alone.get(name)) == alone.get(name):
                self.environment[name] = value

    def _per_host(self, place: Placement) -> Optional[int]:
        """Returns how many ranks a host gets before the next; None for as many as it has slots."""
        words = place.said.get("map-by", "--map-by")
        for modifier in place.modifiers:
            if "=" in modifier:
                self._refuse(words, "Hydra has no such mapping")
            elif modifier == "NOLOCAL":
                self.everywhere += self._option(Given("nolocal", words, ()), place)
            else:
                self._note(f"{words}: {modifier} is left out, Hydra has no such mapping")
        if place.rank_by == "node" and place.by != "node":
            self._note(f"{place.said['rank-by']}: ranks go to the hosts in turn")
            return 1
        if place.rank_by not in ("", "slot", "node"):
            self._note(
                f"{place.said['rank-by']} is left out: Hydra numbers a host's ranks in their order"
            )
        if place.by == "node":
            return place.per_part or 1
        if place.per_part is not None:
            self._refuse(
                words,
                f"Hydra cannot count ranks by {place.by}",
                "give a number of ranks a host, as --map-by ppr:2:node",
            )
        if place.by == "slot":
            self._note(f"{words}: dealing ranks out by slots is what Hydra does anyway")
        elif place.by and place.by not in MACHINE_PARTS:
            self._refuse(words, "Hydra has no such mapping", "map by slot or by node")
        return None

    def _bound(self, place: Placement) -> Words:
        """Returns the options, or sets the variables, that bind each rank to a part of its host."""
        if place.oversubscribe is not None:
            words = place.said.get("oversubscribe", place.said.get("map-by", "oversubscribe"))
            self._note(f"{words}: Hydra starts as many ranks as it is told to, whatever the slots")
        part = place.bind or ("core" if place.cores is not None else "")
        by = place.by if place.by in MACHINE_PARTS else ""
        if by and (part in ("", "none") or not self.flavour.bind_to_flag):
            self._note(f"{place.said['map-by']} makes no difference to {self.flavour.title}")
            by = ""
        if not part:
            return []
        words = place.said.get("bind-to", place.said.get("map-by", "--bind-to"))
        if self.flavour.bind_to_flag:
            if part in ("board", "cpu-list"):
                self._refuse(words, "it does not bind to that", "bind to core or socket")
            number = f":{place.cores}" if place.cores is not None and part == "core" else ""
            return ["-bind-to", part + number, *(["-map-by", by] if by else [])]
        kind, _, cpus = part.partition(":")
        settings = self.flavour.bindings.get(kind)
        if settings is None or (cpus and not re.match(r"^[\d,-]+$", cpus)):
            self._refuse(words, "it does not bind to that", "bind to core or socket")
        if place.cores is not None and part == "core":
            settings, cpus = self.flavour.binding, str(place.cores)
        now = {name: value.replace("{}", cpus) for name, value in settings}
        self.environment.update(now)
        self._note(f"{words} is " + " ".join(f"{k}={v}" for k, v in now.items()))
        return []

    def _needs_conversion(self, text: str) -> bool:
        """Returns True when a host file is not in this dialect, or has hosts without slots.

        MPICH divides by the number of slots.
        """
        return super()._needs_conversion(text) or any(h.slots == 0 for h in hosts_in(text))

    # ------------------------------------------------------------------- environment

    def _do_export(self, option: Given, _: str, __: Placement) -> Words:
        """Takes Open MPI's -x: a value is set, a name alone is there anyway."""
        name, equals, value = option.value.partition("=")
        if not equals:
            return self._dropped(option, "Hydra passes the whole environment on")
        self._note(f"{option.said} is {self._flag} {name} {value}")
        return [self._flag, name, value]

    def _do_path_variable(self, option: Given, _: str, __: Placement) -> Words:
        return [self._flag, "PATH", self._path(option)]

    @property
    def _flag(self) -> str:
        return "-genv" if self.single else "-env"

    # ------------------------------------------------------------------- MCA parameters

    def _do_mca(self, option: Given, _: str, __: Placement) -> Words:
        """Translates the few parameters of Open MPI that Hydra has something for."""
        name, value = option.values
        if name in parameters.AS_OPTIONS:
            return []
        if name in parameters.LAUNCH_INTERFACES or name in parameters.RANK_INTERFACES:
            return self._interface(option, value)
        if name in parameters.SSH_PROGRAM:
            program, *arguments = value.split(":")[0].split() or [""]
            if arguments:
                self.environment[self.flavour.extra_ssh_variable] = " ".join(arguments)
            self._note(f"{option.said} is -launcher-exec")
            return ["-launcher-exec", program] if program else []
        if name in parameters.SSH_ARGUMENTS:
            return self._do_ssh_arguments(option, "", __)
        what = "transport" if name.split("_")[0] in _TRANSPORT else "inside"
        return self._dropped(option, f"it is about Open MPI's own {what}")

    def _interface(self, option: Given, value: str) -> Words:
        """Returns -iface; it takes one name, and no network."""
        names = [part for part in value.split(",") if part and "/" not in part]
        if not names:
            self._refuse(option, "Hydra knows interfaces by name only", "write the name, as eth0")
        if option.values[0] in parameters.RANK_INTERFACES:
            self._rank_interface(names[0])
        before = self.once.setdefault("-iface", names[0])
        if before != names[0]:
            return self._dropped(option, f"Hydra uses one interface for all, and that is {before}")
        if "-iface" in self.everywhere:
            return []
        self._note(f"{option.said} is -iface {names[0]}, for the launcher and for the ranks")
        return ["-iface", names[0]]

    def _do_iface(self, option: Given, _: str, __: Placement) -> Words:
        self.once["-iface"] = option.value
        self._rank_interface(option.value)
        return [] if "-iface" in self.everywhere else ["-iface", option.value]

    def _rank_interface(self, name: str) -> None:
        """Has the ranks talk over an interface, of which -iface itself tells the launcher only."""
        ranks = self.flavour.rank_networks if self.layout.tcp_only else self.flavour.over_fabrics
        for variable in ranks:
            if variable not in self.given:
                self.environment.setdefault(variable, name)

    def _do_intel_tune(self, option: Given, _: str, __: Placement) -> Words:
        """Takes Intel's own -tune FILE; the same name with two dashes is Open MPI's."""
        if option.spelled.startswith("--"):
            self._refuse(option, "it is a file with settings of Open MPI", "leave it out")
        return ["-tune", option.value]

    # -------------------------------------------------------------- start, input and end

    def _do_timeout(self, option: Given, _: str, __: Placement) -> Words:
        self.environment["MPIEXEC_TIMEOUT"] = option.value
        self._note(f"{option.said} is MPIEXEC_TIMEOUT={option.value} for Hydra")
        return []

    def _do_stdin_of_the_first(self, option: Given, _: str, __: Placement) -> Words:
        """Checks that rank 0 is to get the input: MPICH gives it to no other."""
        if option.value not in ("0", "none"):
            self._refuse(option, "only rank 0 gets the input", "read it there and broadcast it")
        return self._dropped(option, "rank 0 gets the input, and no other")

    def _do_ssh_arguments(self, option: Given, _: str, __: Placement) -> Words:
        """Sets arguments for ssh, for which MPICH has no option."""
        self.environment[self.flavour.extra_ssh_variable] = option.values[-1]
        self._note(f"{option.said} is {self.flavour.extra_ssh_variable}")
        return []
