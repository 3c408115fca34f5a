"""What stands in for the package `horovod`: that it is found where it should be, and whole."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")

import shanty
from shanty import compat
from shanty.compat import starting
from shanty.compat.absent import AbsentError
from shanty.compat.starting import Output
from shanty.launch.transport.rpc_client import bundle
from shanty.runtime.rank import import_hooks
from shanty.runtime.rundir import RunDir
from shanty.tasks import call, outcome

SOURCE = Path(shanty.__file__).parents[1]
OURS = SOURCE / "shanty/compat/horovod/__init__.py"
FACTS = Path(__file__).parents[2] / "horovod_api.toml"

# The modules of Horovod 0.28.1 that scripts import, and what they import of them.
IMPORTED = {
    "horovod": "run __version__",
    "horovod.torch.mpi_ops": "Average Sum Adasum Min Max Product allreduce_async_ synchronize poll "
    "rank size init shutdown is_homogeneous ProcessSet global_process_set HorovodInternalError "
    "sparse_allreduce_async grouped_allreduce_async_ allgather_async broadcast_async_ "
    "alltoall_async reducescatter_async join barrier mpi_threads_supported nccl_built "
    "rocm_built start_timeline",
    "horovod.torch.compression": "Compression Compressor NoneCompressor FP16Compressor",
    "horovod.torch.optimizer": "DistributedOptimizer",
    "horovod.torch.functions": "broadcast_parameters broadcast_optimizer_state broadcast_object "
    "allgather_object",
    "horovod.torch.sync_batch_norm": "SyncBatchNorm",
    "horovod.torch.elastic": "run TorchState ElasticSampler",
    "horovod.torch.elastic.state": "TorchState StateHandler ModelStateHandler "
    "OptimizerStateHandler SamplerStateHandler get_handler_registry set_handler_registry",
    "horovod.torch.elastic.sampler": "ElasticSampler",
    "horovod.common.exceptions": "HorovodInternalError HostsUpdatedInterrupt "
    "HorovodVersionMismatchError",
    "horovod.common.process_sets": "ProcessSet global_process_set add_process_set "
    "remove_process_set",
    "horovod.common.elastic": "State ObjectState run_fn notification_manager",
    "horovod.common.util": "extension_available gpu_available mpi_built gloo_built nccl_built "
    "ddl_built ccl_built num_rank_is_power_2 split_list env is_iterable check_extension "
    "get_average_backwards_compatibility_fun is_version_greater_equal_than",
    "horovod.runner": "run",
    "horovod.runner.launch": "run_commandline",
}


@pytest.fixture(scope="module", autouse=True)
def horovod() -> Iterator[ModuleType]:
    """The stand-in, installed in this process for these tests only."""
    compat.install()
    compat.install()  # once is enough
    yield importlib.import_module("horovod")
    sys.meta_path.remove(compat._Finder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "horovod"]:
        del sys.modules[name]


@pytest.mark.parametrize("name", IMPORTED)
def test_modules_that_scripts_import(name: str) -> None:
    module = importlib.import_module(name)
    assert not [each for each in IMPORTED[name].split() if not hasattr(module, each)]
    assert set(IMPORTED[name].split()) <= {*getattr(module, "__all__", dir(module)), "__version__"}


def test_it_has_every_public_name() -> None:
    module = importlib.import_module("horovod.torch")
    ours = importlib.import_module("shanty.torch")
    facts = tomllib.loads(FACTS.read_text())
    sections = facts.keys() - {"optimizer", "differs"}
    names = {path.partition(".")[0] for section in sections for path in facts[section]}
    assert len(names) > 60
    for name in names - {"elastic"}:
        assert getattr(module, name) is getattr(ours, name), name
    assert module.elastic.TorchState is ours.elastic.TorchState
    assert module.mpi_ops.rank is module.rank


@pytest.mark.parametrize("name", ["mxnet", "spark", "ray"])
def test_what_is_not_there_says_so(name: str) -> None:
    with pytest.raises(AbsentError, match=f"horovod.{name} is not in shanty's .* horovod.keras. "):
        importlib.import_module(f"horovod.{name}")
    assert issubclass(AbsentError, ImportError)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tensorflow", "horovod.tensorflow needs TensorFlow: pip install tensorflow"),
        ("tensorflow.keras", "horovod.tensorflow needs TensorFlow: pip install tensorflow"),
        ("keras", "horovod.keras needs Keras: pip install keras tensorflow"),
    ],
)
def test_what_lacks_its_framework_says_so(
    name: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in ("tensorflow", "keras", "shanty.tensorflow", "shanty.keras"):
        monkeypatch.delitem(sys.modules, each, raising=False)
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.setitem(sys.modules, "keras", None)
    with pytest.raises(ModuleNotFoundError, match=f"^{words}$") as raised:
        importlib.import_module(f"horovod.{name}")
    assert raised.value.name == name.partition(".")[0]


def test_it_is_light() -> None:
    code = "import shanty.compat, sys; shanty.compat.install(); import horovod; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "mpi4py", "numpy", "click", "cloudpickle"} & set(done.stdout.split())


def test_it_travels_to_other_hosts() -> None:
    names = {name for name, _, _ in bundle().files}
    assert {"compat/horovod/torch/__init__.py", "compat/starting.py", "torch/elastic.py"} <= names
    assert {"compat/horovod/keras/__init__.py", "tensorflow_ops/ops.py", "keras/names.py"} <= names


class TestUtilities:
    def test_frameworks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        util = importlib.import_module("horovod.common.util")
        monkeypatch.setattr(util, "find_spec", lambda name: name == "torch" or None)
        there = [util.extension_available(each) for each in ("torch", "tensorflow", "mxnet")]
        assert there == [True, False, False]
        assert not util.gpu_available("tensorflow")
        util.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", __file__, "mpi_lib_v2")
        for name, words in (("tensorflow", "pip install tensorflow"), ("mxnet", "not in shanty's")):
            with pytest.raises(ImportError, match=words):
                util.check_extension(f"horovod.{name}", "HOROVOD_WITH_…", __file__)

    def test_lists_and_powers(self) -> None:
        util = importlib.import_module("horovod.common.util")
        assert util.split_list([1, 2, 3, 4, 5], 3) == [[1, 2], [3, 4], [5]]
        assert util.split_list([1], 2) == [[1], []]
        assert [util.num_rank_is_power_2(n) for n in (0, 1, 2, 3, 4)] == [0, 1, 1, 0, 1]
        assert util.is_iterable("a")
        assert not util.is_iterable(1)

    def test_versions(self) -> None:
        at_least = importlib.import_module("horovod.common.util").is_version_greater_equal_than
        assert at_least("2.10.0+cpu", "2.9.1")
        assert not at_least("1.9.0a1", "1.10.0")
        for wrong in (("1.0", "1.0"), (1, "1.0.0")):
            with pytest.raises(ValueError, match=r"1\.0|texts"):
                at_least(*wrong)

    def test_the_old_average(self) -> None:
        util = importlib.import_module("horovod.common.util")
        hvd = importlib.import_module("horovod.torch")
        choose = util.get_average_backwards_compatibility_fun(hvd)
        assert [choose(None, None), choose(None, True), choose(None, False)] == [
            hvd.Average, hvd.Average, hvd.Sum]  # fmt: skip
        assert choose(hvd.Max, None) is hvd.Max
        with pytest.raises(ValueError, match="not both"):
            choose(hvd.Sum, True)

    def test_a_block_with_variables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        util = importlib.import_module("horovod.common.util")
        monkeypatch.setenv("FIRST", "1")
        monkeypatch.delenv("SECOND", raising=False)
        with util.env(FIRST="2", SECOND="3", THIRD=None):
            found = [util.os.environ.get(name) for name in ("FIRST", "SECOND", "THIRD")]
            assert found == ["2", "3", None]
        assert [util.os.environ.get(name) for name in ("FIRST", "SECOND")] == ["1", None]


class TestWhichHorovod:
    """What a run's finder decides, with packages of our own making."""

    @pytest.fixture(autouse=True)
    def nothing_chosen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(import_hooks.HOROVOD, raising=False)

    @staticmethod
    def finders(*folders: Path) -> list[object]:
        class Finder:
            @staticmethod
            def find_spec(name: str, _path: object, _target: object = None) -> object:
                paths = [str(folder) for folder in folders]
                return importlib.machinery.PathFinder.find_spec(name, paths)

        return [object(), Finder]

    def found(self, *folders: Path) -> Path:
        spec = import_hooks.find_horovod("horovod", None, self.finders(*folders))
        return Path(spec.origin)

    @pytest.fixture
    def installed(self, tmp_path: Path) -> Path:
        package = tmp_path / "site" / "horovod"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        return package.parent

    def test_ours_where_there_is_none(self, tmp_path: Path) -> None:
        assert self.found(tmp_path) == OURS

    def test_the_installed_one_wins(self, installed: Path) -> None:
        assert self.found(installed).is_relative_to(installed)

    def test_a_folder_of_that_name_does_not(self, tmp_path: Path) -> None:
        (tmp_path / "horovod").mkdir()
        assert self.found(tmp_path) == OURS

    def test_the_choice(self, installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(import_hooks.HOROVOD, "1")
        assert self.found(installed) == OURS
        monkeypatch.setenv(import_hooks.HOROVOD, "0")
        assert import_hooks.find_horovod("horovod", None, self.finders()) is None

    def test_a_python_that_is_too_old(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(import_hooks, "_NEEDS", (9, 9))
        with pytest.raises(ModuleNotFoundError, match=r"needs Python 9\.9, this is"):
            import_hooks.find_horovod("horovod", None, self.finders())


class TestCalls:
    def test_without_cloudpickle(
        self, horovod: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in [name for name in sys.modules if name.startswith("shanty.tasks")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "cloudpickle", None)
        with pytest.raises(RuntimeError, match=r"needs cloudpickle.* pip install cloudpickle$"):
            horovod.run(len, ("abc",))

    def test_one_that_a_rank_would_make_again(self, tmp_path: Path) -> None:
        """A rank imports the module of the function, and not the script."""
        text = (
            "import pathlib\n"
            "from shanty.compat import starting\n"
            "def work(n): return n + 1\n"
            "if pathlib.Path('call').exists():\n"
            "    starting.run(work, (41,), np=2)\n"
        )
        write = (
            "import pathlib\n"
            "from shanty.tasks import call\n"
            "pathlib.Path('call').mkdir()\n"
            "call.write(pathlib.Path('call'), work, (41,), {}, workspace=pathlib.Path.cwd(),\n"
            "           each=True, elsewhere=False)\n"
        )
        (tmp_path / "read.py").write_text(
            "import pathlib\n"
            "from shanty.tasks import call\n"
            "func, args, _ = call.read(pathlib.Path('call'))\n"
            "print(func(*args))\n"
        )
        (tmp_path / "module.py").write_text(text)
        for script, wanted in ((text + write, "42\n"), ("from module import work\n" + write, "")):
            shutil.rmtree(tmp_path / "call", ignore_errors=True)
            (tmp_path / "script.py").write_text(script)
            subprocess.run([sys.executable, "script.py"], cwd=tmp_path, check=True)
            done = subprocess.run(
                [sys.executable, "read.py"], cwd=tmp_path, capture_output=True, text=True
            )
            assert done.stdout == wanted, done.stderr
        assert "Put the call under `if __name__ == '__main__':`" in done.stderr

    def test_the_environment_of_a_run_within_a_run(self) -> None:
        kept = {"SHANTY_HOME": "h", "LANG": "C"}
        environ = dict.fromkeys(("OMPI_COMM_WORLD_RANK", "RANK", "PMI_RANK", "SHANTY_RUN_DIR"), "1")
        environ |= dict.fromkeys(("MPI4PY_LIBMPI", "MLX_MPI_LIBNAME"), "/mpi/lib/libmpi.so")
        environ["LD_LIBRARY_PATH"] = "/mpi/lib"
        environ["PYTHONPATH"] = f"{SOURCE}/shanty/runtime/rank/hook:/mine"
        assert starting.clean_environment(environ | kept) == {**kept, "PYTHONPATH": "/mine"}


class TestRun:
    """The command that `horovod.run` starts; what comes of it is tested with ranks."""

    @pytest.fixture
    def command(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
        words: list[str] = []

        def follow(command: list[str], output: Output) -> int:
            words[:] = command[3:]
            at = words.index("--inputs")
            func, args, _ = call.read(Path(words[at + 1]))
            assert (func, args) == (len, ("abc",))
            del words[at : at + 2]
            events = [
                {"event": "started", "run": "r", "path": str(tmp_path)},
                {"event": "output", "rank": 0, "stream": "stdout", "text": "hi", "whole": True},
                {
                    "event": "ended",
                    "failure": {"what": "rank 1 died", "lines": ["KeyError"], "rank": 1},
                },
            ]
            output.follow(json.dumps(event).encode() for event in events)
            run = RunDir(tmp_path)
            if "fails" in command:
                outcome.write_error(run, 1, KeyError("gone"))
                return 1
            for rank in range(2):
                outcome.write_value(run, rank, rank + 5, "the value")
            return 0

        monkeypatch.setattr(starting, "_follow", follow)
        return words

    HERE = "-n 2 --oversubscribe --python PYTHON"
    CALLS = (
        ({"num_proc": 2}, f"{HERE} TASK"),
        ({"hosts": "a:1,b:1", "np": 2}, "-n 2 --on a:1,b:1 --python PYTHON TASK"),
        ({"hosts": "localhost:2", "num_proc": 2}, f"{HERE} TASK"),
        (
            {"hostfile": "h", "start_timeout": 9, "np": 2, "executable": "python9"},
            "-n 2 --hostfile h --start-timeout 9 --python python9 TASK",
        ),
        (
            {"num_proc": 2, "mpi_args": "-x A=1", "network_interfaces": ["e0", "e1"]},
            f"{HERE} -- mpirun -np 2 -x A=1 -mca btl_tcp_if_include e0,e1 python TASK",
        ),
        ({"use_mpi": True, "disable_cache": True, "np": 2}, f"{HERE} TASK"),
    )

    @pytest.mark.parametrize(("given", "line"), CALLS)
    def test_what_is_started(
        self, horovod: ModuleType, command: list[str], given: dict[str, object], line: str
    ) -> None:
        assert horovod.run(len, ("abc",), **given) == [5, 6]
        line = line.replace("PYTHON", sys.executable).replace("TASK", "-m shanty.tasks.rank")
        assert command == ["run", "--json", *line.split()]

    def test_its_values_are_fetched_once(
        self, horovod: ModuleType, command: list[str], tmp_path: Path
    ) -> None:
        assert horovod.run(len, ("abc",), np=2) == [5, 6]
        assert list(tmp_path.rglob("value-*")) == []

    def test_a_rank_that_fails(self, horovod: ModuleType, command: list[str]) -> None:
        words = r"(?s)exit code 1: rank 1 died.*\| KeyError"
        with pytest.raises(RuntimeError, match=words) as raised:
            horovod.run(len, ("abc",), mpi_args="fails")
        assert isinstance(raised.value.__cause__, KeyError)

    def test_its_output_in_files(
        self, horovod: ModuleType, command: list[str], tmp_path: Path
    ) -> None:
        horovod.run(len, ("abc",), output_filename=str(tmp_path / "out"))
        assert (tmp_path / "out/rank.0/stdout").read_text() == "hi\n"

    def test_hosts_that_a_script_names(
        self, horovod: ModuleType, command: list[str], tmp_path: Path
    ) -> None:
        script = tmp_path / "hosts.sh"
        script.write_text("#!/bin/sh\necho a; echo b:3\n")
        script.chmod(0o755)
        horovod.run(len, ("abc",), num_proc=4, host_discovery_script=str(script), slots=2)
        assert command[command.index("--on") + 1] == "a:2,b:3"

    WRONG = (
        ({"hosts": "a:1", "hostfile": "h"}, "Only one of hosts"),
        ({"use_gloo": True, "use_mpi": True}, "Only one of use_gloo"),
        ({"ssh_port": 22}, r"~/\.ssh/config"),
    )

    @pytest.mark.parametrize(("given", "words"), WRONG)
    def test_what_makes_no_sense(
        self, horovod: ModuleType, given: dict[str, object], words: str
    ) -> None:
        with pytest.raises(ValueError, match=words):
            horovod.run(len, ("abc",), **given)

    def test_a_number_of_ranks_that_changes(self, horovod: ModuleType, command: list[str]) -> None:
        with pytest.warns(UserWarning, match="leaves out min_num_proc, max_num_proc: the number"):
            horovod.run(len, ("abc",), np=2, min_np=1, max_num_proc=3)
        assert command[:4] == ["run", "--json", "-n", "2"]
