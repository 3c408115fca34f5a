"""Translates a user's launcher line, in any MPI's dialect, for the MPI in use.

The line comes without the launcher's own name, as `sys.argv[1:]`, and goes out the same way.
Which options there are is in `options`, where ranks go and what is alike in both dialects in
`translation`.
"""

from __future__ import annotations

import re
from typing import Dict, FrozenSet, List, Mapping, NoReturn, Optional, Sequence, Set, Type

from shanty.runtime.mpi import parameters
from shanty.runtime.mpi.flavour import Flavour, settled
from shanty.runtime.mpi.hostfiles import Named, Read, hosts_in, listed, read_file
from shanty.runtime.mpi.hydra import Hydra
from shanty.runtime.mpi.layout import HostSlots, Layout
from shanty.runtime.mpi.openmpi import OpenMPI
from shanty.runtime.mpi.options import OPTIONS
from shanty.runtime.mpi.parser import Given, parse
from shanty.runtime.mpi.translation import MACHINE_PARTS, Placement, Translation, Translator, Words

_USUAL_LAUNCHERS = frozenset(
    ["ssh", "rsh", "slurm", "lsf", "ll", "sge", "pbs", "pbsdsh", "srun", "blaunch", "qrsh", "user"]
)

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


def decided_by(argv: Sequence[str], flavour: Flavour) -> FrozenSet[str]:
    """Returns the variables that a line decides by its options, so that shanty must not set them.

    Raises TranslationError as `translate` does.
    """
    names: List[str] = []
    for option in (one for context in parse(argv).contexts for one in context.options):
        if option.name == "iface":
            names += (*flavour.launch_networks, *flavour.rank_networks)
        elif option.name == "x" and "=" in option.value:
            names.append(option.value.partition("=")[0])
        elif option.name in ("env", "genv"):
            names.append(option.values[0])
        elif option.name.endswith("mca"):
            names += ("OMPI_MCA_" + option.value, "PRTE_MCA_" + option.value)
            if option.value in parameters.RANK_INTERFACES:
                names += flavour.rank_networks
            if option.value in parameters.RANK_INTERFACES | parameters.LAUNCH_INTERFACES:
                names += flavour.launch_networks
    return settled(names, flavour.choices)


def translate(
    argv: Sequence[str],
    flavour: Flavour,
    layout: Layout,
    *,
    prefix: Sequence[str] = (),
    given_environment: Mapping[str, str],
    read: Read = read_file,
    converted: str = "",
    known: Optional[Mapping[str, Set[str]]] = None,
) -> Translation:
    """Translates the launcher's line `argv` for `flavour`; both without the launcher itself.

    `prefix` goes in front of each program of the line, unless it is there already; where it is
    not empty, the launcher's own tagging of output is left out. `given_environment` is what
    the launcher would inherit. `read` returns the text of a host file or None. The caller writes a
    file in the wrong dialect again, from the result's `files`, under the path `converted` (by
    default beside the run's own host file). `known` has the addresses of the run's
    hosts by their names; where it is None, hosts are left as the line names them.

    A line that only asks for the version or for help comes out as that and has no program.

    Raises TranslationError, and nothing else, for an option that no launcher has or that this
    one has no counterpart for, naming it, and for a line that makes no sense.
    """
    line = parse(argv)
    if line.asks:
        answer = OPTIONS[line.asks].rules[flavour.name].partition(" ")[2]
        return Translation((answer,), {}, (), ())
    target = converted or (layout.hostfile or "hostfile") + ".translated"
    translator = _TRANSLATORS[flavour.family]
    made = translator(flavour, layout, tuple(prefix), given_environment, read, target, known)
    return made.translation(line)


class _ToOpenMPI(Translator):
    """A line in Open MPI's dialect; every program has its own options there."""

    flavour: OpenMPI

    def _assembled(self, places: List[Placement], own: List[Words], programs: List[Words]) -> Words:
        joined = [word for flag, kinds in self.kinds.items() for word in (flag, ",".join(kinds))]
        argv: Words = []
        for place, words, program in zip(places, own, programs):
            argv += [":"] if argv else []
            argv += [*self._placed(place), *joined, *self.everywhere, *words, *program]
            joined = []
        return argv

    def _option(self, option: Given, place: Placement) -> Words:
        """Returns an option's words; --output and --display come once, as Open MPI 5 wants it."""
        words = super()._option(option, place)
        if words[:1] not in (["--output"], ["--display"]):
            return words
        self.kinds.setdefault(words[0], []).append(words[1])
        return []

    def _is_local(self, option: Given) -> bool:
        """Returns True but for Hydra's options that set a variable for all programs."""
        return not option.name.startswith("genv")

    def _placed(self, place: Placement) -> Words:
        self._decided_ranks(place)
        words: Words = []
        if place.ranks is not None:
            words += ["-n", str(place.ranks)]
        if place.hostfile:
            words += ["--hostfile", place.hostfile]
        if place.hosts:
            words += ["--host", listed(self._with_slots(place))]
        mapping = self._mapping(place)
        if mapping:
            words += ["--map-by", mapping]
        if place.rank_by in self.flavour.rank_by:
            words += ["--rank-by", place.rank_by]
        elif place.rank_by:
            words_said = place.said["rank-by"]
            self._note(f"{words_said} is left out: {self.flavour.title} has no such order")
        binding = self._bound(place)
        if binding:
            words += ["--bind-to", binding]
        if place.oversubscribe is False:
            for name, value in self.flavour.oversubscribed:
                if value == "1":  # beside it, 4.1 calls the flag a conflict
                    self.environment[name] = "0"
        return words

    def _with_slots(self, place: Placement) -> List[Named]:
        """Returns the line's hosts; in a list of Hydra's a host takes as many ranks as come."""
        hosts = list(place.hosts)
        if not place.hosts_fill or all(host.slots is not None for host in hosts):
            return hosts
        known = {host.name: host.slots for host in self.layout.hosts}
        share = -(-place.ranks // len(hosts)) if place.ranks is not None else 1
        each = place.per_part if place.by == "node" else None
        found = [
            Named(h.name, (each or known.get(h.name) or share) if h.slots is None else h.slots)
            for h in hosts
        ]
        if sum(host.slots or 0 for host in found) < (place.ranks or 0):
            found = [Named(host.name, max(share, host.slots or 0)) for host in found]
        self._note(f"{place.said['host']} is --host {listed(found)}")
        return found

    def _mapping(self, place: Placement) -> str:
        part = place.by
        if part in self.flavour.lacks:
            self._refuse(
                place.said["map-by"],
                f"it does not map by {part}",
                "map by slot, node, core, socket or numa",
            )
        # Hydra's `-ppn 1` is one rank a host, and round again while there are more.
        goes_round = place.fills and place.per_part == 1 and place.ranks is not None
        if place.per_part is not None and not goes_round:
            part = f"ppr:{place.per_part}:{place.by}"
        modifiers = list(place.modifiers)
        if place.cores is not None:
            modifiers.insert(0, f"PE={place.cores}")
        if place.oversubscribe is not None:
            modifiers.append("OVERSUBSCRIBE" if place.oversubscribe else "NOOVERSUBSCRIBE")
        if modifiers and not part:
            part = "slot"  # without, Open MPI 5 puts every rank on the first host
        return ":".join([part, *modifiers])

    def _bound(self, place: Placement) -> str:
        part = place.bind
        if part.startswith("user:") or part in self.flavour.lacks:
            self._refuse(
                place.said["bind-to"],
                "it does not bind to that",
                "bind to core, hwthread, socket or numa",
            )
        if not part and place.cores is not None:
            part = "core"  # a default of the environment would undo what PE= asks for
        qualifiers = list(place.qualifiers)
        shares = self.layout.oversubscribe and part not in ("", "none")
        if shares and "overload-allowed" not in qualifiers:
            qualifiers.append("overload-allowed")
            self._note(f"--bind-to {part} may share cores: the run has more ranks than cores")
        return ":".join([part, *qualifiers])

    def _exported(self, option: Given, text: str) -> Words:
        """Writes -x NAME, -x NAME=VALUE, -x 'PREFIX*' (the last one not in 4.1)."""
        if "=" not in text and not self._is_set(option, text):
            return []
        if not text.endswith("*") or "=" in text or self.flavour.runtime == "prte":
            return ["-x", text]
        names = sorted(name for name in self.given if name.startswith(text[:-1]))
        self._note(f"{option.said} is written out for {self.flavour.title}")
        return [word for name in dict.fromkeys(names) for word in ("-x", name)]

    def _variable(self, name: str, value: str) -> Words:
        return ["-x", f"{name}={value}"]

    def _do_path_variable(self, option: Given, _: str, __: Placement) -> Words:
        """Sets PATH: Open MPI 5 would put --path before an absolute path, too."""
        return ["-x", f"PATH={self._path(option)}"]

    def _do_mca(self, option: Given, _: str, __: Placement) -> Words:
        """Sets a parameter, by its name in this version and the flag for its part of Open MPI."""
        name, value = option.values
        if name in parameters.AS_OPTIONS:
            return []
        if name in parameters.LAUNCH_INTERFACES:
            return self._launch_interface(value)
        runtime = self.flavour.runtime
        now = parameters.renamed(name, runtime)
        if now != name:
            self._note(f"{option.said} is {now} in {self.flavour.title}")
        return self._parameter(option.name, now, parameters.value_for(now, value, runtime))

    def _parameter(self, flag: str, name: str, value: str) -> Words:
        part = name.split("_")[0]
        if self.flavour.runtime == "orte":
            if flag == "pmixmca":
                self.environment[f"PMIX_MCA_{name}"] = value
                return []
            return ["--gmca" if flag == "gmca" else "--mca", name, value]
        if part in parameters.RUNTIME_FRAMEWORKS:
            flag = "prtemca"
        elif part in parameters.PMIX_FRAMEWORKS and part != "pstat":
            flag = "pmixmca"
        return [f"--{flag}", name, value]

    def _launch_interface(self, value: str) -> Words:
        """Names the interfaces that the launcher uses, by both of their names in Open MPI 5."""
        flag = self.flavour.runtime_flag
        names = dict.fromkeys(("oob_tcp_if_include", self.flavour.launch_include))
        if self.once.get("interface") == value:
            return []
        self.once["interface"] = value
        return [word for name in names for word in (flag, name, value)]

    def _do_iface(self, option: Given, _: str, __: Placement) -> Words:
        """Takes Hydra's -iface, which is for the launcher and for the ranks."""
        self._note(f"{option.said} is btl_tcp_if_include and oob_tcp_if_include in Open MPI")
        ranks = ["--mca", "btl_tcp_if_include", option.value]
        return [*ranks, *self._launch_interface(option.value)]

    def _do_launcher(self, option: Given, _: str, __: Placement) -> Words:
        """Drops how Hydra starts its proxies; Open MPI finds that out by itself."""
        if option.value not in _USUAL_LAUNCHERS:
            self._refuse(option, "Open MPI has no such way to reach a host", "leave it out")
        return self._dropped(option, "Open MPI finds out by itself how to reach the hosts")

    def _do_daemons(self, option: Given, which: str, _: Placement) -> Words:
        """Sets a parameter of the part that starts the daemons: its "agent" (ssh) or "args"."""
        name = f"plm_{self.flavour.agent}_{which}"
        self._note(f"{option.said} is {name} in {self.flavour.title}")
        return [self.flavour.runtime_flag, name, option.value]


class _ToHydra(Translator):
    """A line in Hydra's dialect; most options count for all programs there and come first."""

    flavour: Hydra
    dashes = "-"
    one_tag = True

    def _is_local(self, option: Given) -> bool:
        """Returns True for the options that Hydra lets each of several programs have."""
        return option.name in _LOCAL and not self.single

    def _assembled(self, places: List[Placement], own: List[Words], programs: List[Words]) -> Words:
        place = self._common(places)
        for one in places:
            self._count(one, place)
        argv = [*self._hosts(place), *self._bound(place), *self.everywhere]
        moved = False
        for at, (one, words, program) in enumerate(zip(places, own, programs)):
            argv += [":"] if at else []
            if one.hosts and not place.hosts:
                argv += ["-host", one.hosts[0].name]
            if one.ranks is not None:
                argv += ["-n", str(one.ranks)]
            before = moved and "-wdir" not in words
            moved = moved or "-wdir" in words
            # Intel MPI would take that of the program before.
            argv += [*words, *(["-wdir", "."] if before else []), *program]
        return argv

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
        self._decided_ranks(one)
        if one.ranks is None and self.single:
            hosts = self._own_hosts(place)
            if place.per_part is not None and not place.fills and place.by == "node":
                one.ranks = place.per_part * len(hosts)
            else:
                one.ranks = sum(host.slots for host in hosts)
            one.ranks = one.ranks or None
            if one.ranks:
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
            self._note(f"{words}: Hydra starts the given number of ranks, whatever the slots")
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

        MPICH divides by the number of slots, and reads no comment behind a host.
        """
        commented = re.search(r"^[^#\n]*[^#\s][^#\n]*#", text, re.MULTILINE) is not None
        odd = commented or any(host.slots == 0 for host in hosts_in(text))
        return odd or super()._needs_conversion(text)

    def _exported(self, option: Given, text: str) -> Words:
        """Sets a variable that has a value; Hydra passes on all that are set."""
        name, equals, value = text.partition("=")
        if equals:
            self._note(f"{option.said} is {self._flag} {name} {value}")
            return [self._flag, name, value]
        if self._is_set(option, name) and option.name == "x":
            self._dropped(option, "Hydra passes the whole environment on")
        return []

    def _do_path_variable(self, option: Given, _: str, __: Placement) -> Words:
        return [self._flag, "PATH", self._path(option)]

    def _variable(self, name: str, value: str) -> Words:
        return ["-genv", name, value]

    @property
    def _flag(self) -> str:
        return "-genv" if self.single else "-env"

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
        """Has the ranks talk over an interface too: -iface itself is for the launcher only."""
        ranks = self.flavour.rank_networks if self.layout.tcp_only else self.flavour.over_fabrics
        for variable in ranks:
            if variable not in self.given:
                self.environment.setdefault(variable, name)

    def _do_intel_tune(self, option: Given, _: str, __: Placement) -> Words:
        """Takes Intel's own -tune FILE; the same name with two dashes is Open MPI's."""
        if option.spelled.startswith("--"):
            self._refuse(option, "it is a file with settings of Open MPI", "leave it out")
        return ["-tune", option.value]

    def _do_timeout(self, option: Given, _: str, __: Placement) -> Words:
        self.environment["MPIEXEC_TIMEOUT"] = option.value
        self._note(f"{option.said} is MPIEXEC_TIMEOUT={option.value} for Hydra")
        return []

    def _do_ssh_arguments(self, option: Given, _: str, __: Placement) -> Words:
        """Sets arguments for ssh, for which MPICH has no option."""
        self.environment[self.flavour.extra_ssh_variable] = option.values[-1]
        self._note(f"{option.said} is {self.flavour.extra_ssh_variable}")
        return []


_TRANSLATORS: Dict[str, Type[Translator]] = {"openmpi": _ToOpenMPI, "hydra": _ToHydra}
