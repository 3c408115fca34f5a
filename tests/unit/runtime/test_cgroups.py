"""The limits of control groups, from the files of both versions."""

from __future__ import annotations

from pathlib import Path

from shanty.runtime import cgroups


def write(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


def test_version_2(tmp_path: Path) -> None:
    """The least limit counts, also of a group above; `max` is none."""
    group = "sys/fs/cgroup/a.slice"
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a.slice/b.scope\n",
            f"{group}/b.scope/cpu.max": "max 100000\n",
            f"{group}/cpu.max": "150000 100000\n",
            f"{group}/cpu.stat": "usage_usec 2500000\nuser_usec 2000000\n",
            f"{group}/b.scope/memory.max": "1048576\n",
            f"{group}/b.scope/memory.current": "900000\n",
            f"{group}/b.scope/memory.stat": "anon 1\ninactive_file 400000\n",
            f"{group}/memory.max": "max\n",
        },
    )
    cpu, memory = cgroups.cpu_bound(root), cgroups.memory_bound(root)
    assert cpu is not None and memory is not None
    assert (cpu.cores, cpu.used()) == (1.5, 2.5)
    assert (memory.limit, memory.used()) == (1048576, 500000)


def test_version_1(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/job\n2:cpuacct:/job\n1:cpu:/job\n0::/\n",
            "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpuacct/job/cpuacct.usage": "3000000000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "4096000\n",
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "5000\n",
            "sys/fs/cgroup/memory/job/memory.stat": "inactive_file 0\ntotal_inactive_file 1000\n",
        },
    )
    cpu, memory = cgroups.cpu_bound(root), cgroups.memory_bound(root)
    assert cpu is not None and memory is not None
    assert (cpu.cores, cpu.used()) == (0.5, 3.0)
    assert (memory.limit, memory.used()) == (4096000, 4000)


def test_a_container_sees_its_own_group_at_the_top(tmp_path: Path) -> None:
    """Its path may be the host's, which is not there."""
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "1:cpu,cpuacct:/docker/abc\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu/cpuacct.usage": "1000000000\n",
        },
    )
    cpu = cgroups.cpu_bound(root)
    assert cpu is not None
    assert (cpu.cores, cpu.used()) == (2.0, 1.0)


def test_without_limits(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"})
    assert cgroups.cpu_bound(root) is None
    assert cgroups.memory_bound(root) is None
    assert cgroups.cpu_bound(str(tmp_path / "nothing")) is None
