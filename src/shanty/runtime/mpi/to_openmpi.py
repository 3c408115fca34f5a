"""Translates a user's line for Open MPI 4 or 5."""

from __future__ import annotations

from typing import List

from shanty.runtime.mpi import parameters
from shanty.runtime.mpi.hostfiles import Named, listed
from shanty.runtime.mpi.openmpi import OpenMPI
from shanty.runtime.mpi.parser import Given
from shanty.runtime.mpi.placement import Placement
from shanty.runtime.mpi.translation import Translator, Words

_USUAL_LAUNCHERS = frozenset(
    ["ssh", "rsh", "slurm", "lsf", "ll", "sge", "pbs", "pbsdsh", "srun", "blaunch", "qrsh", "user"]
)


class ToOpenMPI(Translator[OpenMPI]):
    """A line in Open MPI's dialect; every program has its own options there."""

    def _assembled(
        self, places: List[Placement], written: List[Words], programs: List[Words]
    ) -> Words:
        joined = [word for flag, kinds in self.kinds.items() for word in (flag, ",".join(kinds))]
        argv: Words = []
        for place, words, program in zip(places, written, programs):
            argv += [":"] if argv else []
            argv += [*self._placed(place), *joined, *self.everywhere, *words, *program]
            joined = []
        return argv

    def _option(self, option: Given, place: Placement) -> Words:
        """Returns an option's words; --output and --display come once, as Open MPI 5 wants it."""
        words = super()._option(option, place)
        if words[:1] not in (["--output"], ["--display"]):
            return words
        if "," in option.value and option.name.startswith("output-"):
            self._refuse(option, "a comma ends a name there", "choose another name")
        self.kinds.setdefault(words[0], []).append(words[1])
        return []

    def _is_local(self, option: Given) -> bool:
        """Returns True but for Hydra's options that set a variable for all programs."""
        return not option.name.startswith("genv")

    # --------------------------------------------------------------------- placement

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
        if place.per_part is not None and not self._goes_round(place):
            part = f"ppr:{place.per_part}:{place.by}"
        modifiers = list(place.modifiers)
        if place.cores is not None:
            modifiers.insert(0, f"PE={place.cores}")
        if place.oversubscribe is not None:
            modifiers.append("OVERSUBSCRIBE" if place.oversubscribe else "NOOVERSUBSCRIBE")
        if modifiers and not part:
            part = "slot"  # without, Open MPI 5 puts every rank on the first host
        return ":".join([part, *modifiers])

    def _goes_round(self, place: Placement) -> bool:
        """Recognises Hydra's `-ppn 1`: one rank a host, and round again while there are more."""
        return place.fills and place.per_part == 1 and place.ranks is not None

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

    # ------------------------------------------------------------------- environment

    def _do_export(self, option: Given, _: str, __: Placement) -> Words:
        """Writes -x NAME, -x NAME=VALUE, -x 'PREFIX*' (the last one not in 4.1)."""
        value = option.value
        if not value.endswith("*") or "=" in value or self.flavour.runtime == "prte":
            return ["-x", value]
        names = sorted(name for name in self.given if name.startswith(value[:-1]))
        self._note(f"{option.said} is written out for {self.flavour.title}")
        return [word for name in names for word in ("-x", name)]

    def _do_envlist(self, option: Given, _: str, __: Placement) -> Words:
        """Hands variables on by name; Hydra withholds all others, which Open MPI cannot."""
        names = [name for name in option.value.split(",") if name]
        self._note(f"{option.said} is -x: the rest of the environment is there as well")
        return [word for name in names for word in ("-x", name)]

    def _do_path_variable(self, option: Given, _: str, __: Placement) -> Words:
        """Sets PATH: Open MPI 5 would put --path before an absolute path, too."""
        return ["-x", f"PATH={self._path(option)}"]

    # ------------------------------------------------------------------- MCA parameters

    def _do_mca(self, option: Given, _: str, __: Placement) -> Words:
        """Sets a parameter, by its name in this version and the flag for its part of Open MPI."""
        name, value = option.values
        if name in parameters.AS_OPTIONS:
            return []
        if name in parameters.LAUNCH_INTERFACES:
            return self._launch_interface(value)
        now = parameters.renamed(name, self.flavour.runtime)
        if now != name:
            self._note(f"{option.said} is {now} in {self.flavour.title}")
        return self._parameter(
            option.name, now, parameters.value_for(now, value, self.flavour.runtime)
        )

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
        names = ["oob_tcp_if_include"]
        if self.flavour.runtime == "prte":
            names.append("prte_if_include")
        if self.once.get("interface") == value:
            return []
        self.once["interface"] = value
        return [word for name in names for word in (self.flavour.runtime_flag, name, value)]

    def _do_iface(self, option: Given, _: str, __: Placement) -> Words:
        """Takes Hydra's -iface, which is for the launcher and for the ranks."""
        self._note(f"{option.said} is btl_tcp_if_include and oob_tcp_if_include in Open MPI")
        ranks = ["--mca", "btl_tcp_if_include", option.value]
        return [*ranks, *self._launch_interface(option.value)]

    # -------------------------------------------------------------- start, input and end

    def _do_stdin(self, option: Given, _: str, __: Placement) -> Words:
        if not (option.value.isdigit() or option.value in ("all", "none")):
            self._refuse(option, "only one rank, all or none can get the input", "use `all`")
        return ["--stdin", option.value]

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
