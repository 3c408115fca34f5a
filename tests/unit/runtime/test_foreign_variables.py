"""Variables that a host had before a run: what launchers and ranks see of them."""

from __future__ import annotations

from pathlib import Path

from shanty.runtime import foreign_variables

LOGIN = {
    "PATH": "/bin",
    "SLURM_JOB_ID": "7",
    "PBS_NODEFILE": "/x",
    "PE_HOSTFILE": "/y",
    "PMI_RANK": "3",
    "PMIX_SERVER_URI41": "z",
    "OMPI_COMM_WORLD_SIZE": "4",
    "PMIX_MCA_gds": "hash",
    "OMPI_MCA_pml": "ob1",
    "LS_COLORS": "di=34",
}


def test_a_launcher_sees_no_allocation_and_no_outer_launcher() -> None:
    kept = {"PATH", "PMIX_MCA_gds", "OMPI_MCA_pml", "LS_COLORS"}
    assert foreign_variables.for_launcher(LOGIN) == {name: LOGIN[name] for name in kept}


def test_a_rank_sees_the_allocation_again() -> None:
    environ = {**foreign_variables.for_launcher(LOGIN), **foreign_variables.pass_on(LOGIN)}
    foreign_variables.take(environ)
    allocation = {"SLURM_JOB_ID": "7", "PBS_NODEFILE": "/x", "PE_HOSTFILE": "/y"}
    assert environ == {**foreign_variables.for_launcher(LOGIN), **allocation}
    assert foreign_variables.pass_on({"PATH": "/bin"}) == {}


def test_what_leads_nowhere_is_removed(tmp_path: Path) -> None:
    there = tmp_path / "lib.so"
    there.touch()
    environ = {"PYTHONHOME": "/nowhere", "LD_PRELOAD": f"/nowhere.so:{there} libm.so.6"}
    assert foreign_variables.take(environ) == ["/nowhere.so"]
    assert environ == {"LD_PRELOAD": f"{there} libm.so.6"}
    preload = f"{there}:libm.so.6:/usr/$LIB/libjemalloc.so.2"  # ld.so reads that
    same = {"PYTHONHOME": str(tmp_path), "LD_PRELOAD": preload}
    after = dict(same)
    assert foreign_variables.take(after) == []
    assert after == same


def test_settings_are_named_once_for_all_hosts_that_have_them() -> None:
    found = foreign_variables.settings(LOGIN, ours=["OMPI_MCA_pml"])
    assert found == {"PMIX_MCA_gds": "hash"}
    said = foreign_variables.told({"b": found, "a": found, "c": {"UCX_TLS": "tcp"}, "d": {}})
    assert said == (
        "set before the run, as by a login file: PMIX_MCA_gds=hash on a, b; UCX_TLS=tcp on c"
    )
    assert foreign_variables.told({"a": {}}) == ""
