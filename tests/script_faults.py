"""Mistakes in scripts that make ranks hang, or fail because of another rank, and what a run says.

`tests/mpi/test_script_faults.py` runs each on two ranks; docs/help/faults.md lists them.
"""

from __future__ import annotations

from dataclasses import dataclass

_INIT = "torch.distributed.init_process_group"
_MPI = "import numpy as np\nfrom mpi4py import MPI\nc = MPI.COMM_WORLD\n"
_TORCH = "import torch, torch.distributed as dist\ndist.init_process_group('gloo'{})\n"
_FIRST = "import os, time\nfirst = os.environ['RANK'] == '0'\n"
_LOAD = _FIRST + "def load():\n    time.sleep(9999)\nif not first: load()\n"
_LATE = r"rank 1 on \S+ is idle in load \(script\.py:4\), rank 0 waits in {}"
_EARLY = r"rank 1 on \S+ ended with exit code 0 before it reached {}"
_COUNTS = "let all ranks pass equal counts and types to the call"


@dataclass(frozen=True)
class ScriptFault:
    """One row. `says` is a pattern that the run prints, `told` how the page has it."""

    title: str
    script: str
    says: str
    told: str
    stalls: bool = True  # or it fails
    mpi: str = ""  # the only one with which it happens; any where empty
    tensorflow: bool = False  # it needs the environment with TensorFlow and JAX


SCRIPTS = [
    ScriptFault(
        "a rank loads, while the others wait in torch's `init_process_group`",
        _LOAD + _TORCH.format(""),
        _LATE.format(f"{_INIT} for 2 ranks"),
        f"rank 1 on host is idle in load (script.py:3), rank 0 waits in {_INIT} for 2 ranks",
    ),
    ScriptFault(
        "the same with JAX",
        _LOAD + "import jax\njax.distributed.initialize()\n",
        _LATE.format("jax.distributed.initialize for 2 ranks"),
        "…, rank 0 waits in jax.distributed.initialize for 2 ranks",
        tensorflow=True,
    ),
    ScriptFault(
        "the same with TensorFlow's `MultiWorkerMirroredStrategy`",
        _LOAD + "import tensorflow\ntensorflow.distribute.MultiWorkerMirroredStrategy()\n",
        _LATE.format("the start of TensorFlow's cluster for 2 ranks"),
        "…, rank 0 waits in the start of TensorFlow's cluster for 2 ranks",
        tensorflow=True,
    ),
    ScriptFault(
        "the same with MPI_Init",
        _LOAD + "import mpi4py.MPI\n",
        _LATE.format("MPI_Init"),
        "…, rank 0 waits in MPI_Init",
    ),
    ScriptFault(
        "`world_size=4` is written into a script that two ranks run",
        "import os\n" + _TORCH.format(", rank=int(os.environ['RANK']), world_size=4"),
        f"ranks 0, 1 wait in {_INIT} for 4 ranks, and this run has 2",
        f"ranks 0, 1 wait in {_INIT} for 4 ranks, and this run has 2",
    ),
    ScriptFault(
        "a group of torch's is made by one rank only",
        _TORCH.format("") + "if dist.get_rank() == 0: dist.new_group([0, 1])\n"
        "else: dist.barrier()\n",
        r"rank \d on \S+ is in torch(\.distributed\.new_group| \w+) at .*, rank \d waits in torch",
        "rank 1 on host is in torch barrier at <module> (script.py:4), rank 0 waits in "
        "torch.distributed.new_group",
    ),
    ScriptFault(
        "torch's `init_rpc` for more ranks than there are",
        "import os\nfrom torch.distributed import rpc\nrank = os.environ['RANK']\n"
        "rpc.init_rpc(f'worker{rank}', rank=int(rank), world_size=3)\n",
        "ranks 0, 1 wait in torch.distributed.rpc.init_rpc for 3 ranks, and this run has 2",
        "ranks 0, 1 wait in torch.distributed.rpc.init_rpc for 3 ranks, and this run has 2",
    ),
    ScriptFault(
        "a `HashStore`, which each rank has for itself",
        "import os, torch.distributed as dist\n"
        "store, rank = dist.HashStore(), int(os.environ['RANK'])\n"
        "dist.init_process_group('gloo', store=store, rank=rank, world_size=2)\n",
        f"ranks 0, 1 wait in {_INIT} at a HashStore that each rank has for itself",
        f"ranks 0, 1 wait in {_INIT} at a HashStore that each rank has for itself, which comes "
        "from the script: store=HashStore()",
    ),
    ScriptFault(
        "a function that torch's `rpc_sync` calls does not return",
        "import os, time\nfrom torch.distributed import rpc\nrank = int(os.environ['RANK'])\n"
        "def slow():\n    while True: time.sleep(0.1)\n"
        "rpc.init_rpc(f'worker{rank}', rank=rank, world_size=2)\n"
        "if rank == 0: rpc.rpc_sync('worker1', slow, timeout=0)\nrpc.shutdown()\n",
        r"rank 1 on \S+ is in slow \(\w+.py:5\), which rank 0 has called by torch rpc_sync",
        "rank 1 on host is in slow (script.py:5), which rank 0 has called by torch rpc_sync",
    ),
    ScriptFault(
        "a thread that keeps one rank from its end",
        "import threading, time\nfrom mpi4py import MPI\nMPI.COMM_WORLD.barrier()\n"
        "def watch():\n    while True: time.sleep(1)\n"
        "if MPI.COMM_WORLD.rank == 1: threading.Thread(target=watch).start()\n",
        r"rank 1 on \S+ is at the end of its script, waiting for a thread in watch \(\w+.py:5\)",
        "rank 1 on host is at the end of its script, waiting for a thread in watch (script.py:5)",
    ),
    ScriptFault(
        "a thread of a rank fails, whose result the rank waits for",
        _MPI + "import queue, threading\nq = queue.Queue()\n"
        "def load():\n    if c.rank == 1: raise ValueError('record 12')\n    q.put(1)\n"
        "threading.Thread(target=load).start(); q.get(); c.barrier()\n",
        r"rank 1 on \S+ is idle in <module> \(\w+.py:9\), rank 0 waits in MPI_Barrier; "
        "rank 1 has printed: ValueError: record 12",
        "rank 1 on host is idle in <module> (script.py:9), rank 0 waits in MPI_Barrier; rank 1 has "
        "printed: ValueError: record 12",
    ),
    ScriptFault(
        "torch's `TCPStore` for more clients than there are",
        _FIRST + "from torch.distributed import TCPStore\n"
        "address = os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])\n"
        "TCPStore(*address, world_size=3, is_master=first)\n",
        "rank 0 waits in TCPStore for 3 ranks, and this run has 2",
        "rank 0 waits in TCPStore for 3 ranks, and this run has 2",
    ),
    ScriptFault(
        "no rank serves a `TCPStore`",
        "from torch.distributed import TCPStore\nTCPStore('127.0.0.1', 1)\n",
        "ranks 0, 1 wait in TCPStore at 127.0.0.1:1, and none of them serves it",
        "ranks 0, 1 wait in TCPStore at 127.0.0.1:1, and none of them serves it",
    ),
    ScriptFault(
        "a rank waits for a key that no rank sets in torch's `TCPStore`",
        _FIRST + "from torch.distributed import PrefixStore, TCPStore\n"
        "address = os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])\n"
        "store = PrefixStore('job', TCPStore(*address, 2, first))\n"
        "if first: store.wait(['loss', 'step'])\nelse: store.get('weights')\n",
        "rank 0 waits in PrefixStore.wait for the keys 'loss', 'step', rank 1 waits in "
        r"PrefixStore.get for the key 'weights', and no rank has set them\n  fix: let a rank set",
        "rank 0 waits in PrefixStore.wait for the keys 'loss', 'step', rank 1 waits in "
        "PrefixStore.get for the key 'weights', and no rank has set them",
    ),
    ScriptFault(
        "a rank ends before it sets a key in torch's `FileStore`",
        _FIRST + "from torch.distributed import FileStore\n"
        "store = FileStore(os.environ['SHANTY_RUN_DIR'] + '/store', 2)\n"
        "if not first: store.get('weights')\n",
        r"rank 0 on \S+ is gone: it has ended, rank 1 waits in FileStore.get for the key 'weights'"
        r"\n  fix: let a rank set",
        "rank 0 on host is gone: it has ended, rank 1 waits in FileStore.get for the key 'weights'",
    ),
    ScriptFault(
        "two ranks serve a `TCPStore`",
        _FIRST + "from torch.distributed import TCPStore\n"
        "TCPStore(os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']), 2, True)\n",
        "why: ranks 0, 1 both pass is_master=True to TCPStore; ",
        "ranks 0, 1 both pass is_master=True to TCPStore; DistNetworkError: …",
        stalls=False,
    ),
    ScriptFault(
        "XGBoost's tracker waits for more workers than there are",
        _MPI + "from xgboost import collective\nfrom xgboost.tracker import RabitTracker\n"
        "tracker, words = None, None\nif c.rank == 0:\n"
        "    tracker = RabitTracker(n_workers=4, host_ip='127.0.0.1', sortby='task')\n"
        "    tracker.start()\n    words = tracker.worker_args()\nwords = c.bcast(words)\n"
        "with collective.CommunicatorContext(dmlc_task_id=str(c.rank), **words): pass\n",
        "wait in xgboost.collective.init for 4 ranks, and this run has 2",
        "ranks 0, 1 wait in xgboost.collective.init for 4 ranks, and this run has 2",
    ),
    ScriptFault(
        "`MASTER_ADDR` of another cluster is written into the script",
        "import os\nos.environ['MASTER_ADDR'] = '10.255.255.1'\n" + _TORCH.format(""),
        rf"ranks 0, 1 wait in {_INIT} at 10\.255\.255\.1:\d+, which comes from MASTER_ADDR in "
        r"script\.py:2; shanty had set 127\.0\.0\.1:\d+",
        f"ranks 0, 1 wait in {_INIT} at 10.255.255.1:29500, which comes from MASTER_ADDR in "
        "script.py:2; shanty had set 127.0.0.1:29500",
    ),
    ScriptFault(
        "`rank=0` is written into the script",
        _TORCH.format(", rank=0, world_size=2"),
        f"ranks 0, 1 both claim to be rank 0 in {_INIT}",
        f"ranks 0, 1 both claim to be rank 0 in {_INIT}",
        stalls=False,
    ),
    ScriptFault(
        "a rank ends well before it starts MPI",
        _FIRST + "if first:\n    import mpi4py.MPI\n",
        _EARLY.format("MPI_Init"),
        "rank 1 on host ended with exit code 0 before it reached MPI_Init",
        stalls=False,
    ),
    ScriptFault(
        "a rank ends well before it joins torch's group",
        _FIRST + "if not first: raise SystemExit\n" + _TORCH.format(""),
        _EARLY.format(_INIT),
        f"rank 1 on host ended with exit code 0 before it reached {_INIT}",
        stalls=False,
    ),
    ScriptFault(
        "one batch fewer on a rank, over Gloo",
        _TORCH.format("") + "for _ in range(5 - dist.get_rank()): dist.all_reduce(torch.ones(1))\n",
        r"rank 1 on \S+ came to the end of its script while rank 0 still communicated with it\n"
        r"  why: rank 0 at script\.py:3: RuntimeError: ",
        "rank 1 on host came to the end of its script while rank 0 still communicated with it",
        stalls=False,
    ),
    ScriptFault(
        "two collectives in another order, over Gloo",
        _TORCH.format("") + "def one(): dist.all_reduce(torch.ones(1000))\n"
        "def two(): dist.broadcast(torch.ones(10), 0)\n"
        "for call in (one, two) if dist.get_rank() == 0 else (two, one): call()\n",
        r"rank 1 on \S+ is in torch broadcast at two \(script\.py:4\), rank 0 waits in torch "
        "all_reduce",
        "rank 1 on host is in torch broadcast at two (script.py:4), rank 0 waits in torch "
        "all_reduce",
    ),
    ScriptFault(
        "tags of sends and receives do not match",
        _MPI + "c.send('x', 1 - c.rank, tag=c.rank); c.recv(source=1 - c.rank, tag=c.rank)\n",
        r"all ranks wait in MPI_\w+\n  fix: compare source and tag of these receives",
        "all ranks wait in MPI_Mprobe; compare source and tag of these receives …",
    ),
    ScriptFault(
        "all ranks send large messages before they receive",
        _MPI + "c.Send(np.ones(1 << 24), 1 - c.rank)\n",
        r"all ranks wait in MPI_Send\n  fix: let some ranks receive before they send",
        "all ranks wait in MPI_Send; let some ranks receive before they send, or use Sendrecv …",
    ),
    ScriptFault(
        "a process that was forked after MPI_Init calls MPI",
        _MPI + "import multiprocessing\n"
        "def work(): c.allreduce(1)\n"
        "if c.rank == 1:\n"
        "    child = multiprocessing.get_context('fork').Process(target=work)\n"
        "    child.start(); child.join()\nelse: c.allreduce(1)\nc.barrier()\n",
        r"all ranks wait in MPI_Barrier; rank 1 has forked a process after MPI_Init "
        r"\(script\.py:8\)",
        "all ranks wait in MPI_Barrier; rank 1 has forked a process after MPI_Init (script.py:8)",
        mpi="openmpi5",
    ),
    ScriptFault(
        "counts differ in a collective",
        _MPI + "a = np.ones(100_000 * (1 + c.rank)); c.Allreduce(a, np.zeros_like(a))\n",
        rf"MPI_Allreduce failed: Message truncated\n  fix: {_COUNTS}",
        f"rank 0 …: MPI_Allreduce failed: Message truncated; {_COUNTS} …",
        stalls=False,
        mpi="mpich",
    ),
    ScriptFault(
        "MPI_Comm_spawn of more processes than there is room for",
        _MPI + "import sys\nMPI.COMM_SELF.Spawn(sys.executable, args=['-c', ''], maxprocs=64)\n",
        r"why: MPI started no workers: .*\n  fix: start all processes with the run",
        "rank 0 …: MPI started no workers; start all processes with the run …",
        stalls=False,
        mpi="openmpi5",
    ),
    ScriptFault(
        "the current folder is removed",
        _MPI + "import os, shutil\nif c.rank == 1: shutil.rmtree(os.getcwd()); os.chdir('/')\n"
        "c.barrier()\nif c.rank == 0: os.getcwd()\nc.barrier()\n",
        r"why: FileNotFoundError: .*\n  fix: the current folder of the rank, \S+, was removed",
        "rank 0 …: FileNotFoundError …; the current folder of the rank, …, was removed: find out "
        "what removes it",
        stalls=False,
    ),
    ScriptFault(
        "an exception, with a `sys.excepthook` that fails",
        _MPI + "import sys\nsys.excepthook = lambda *_: 1 / 0\n"
        "if c.rank == 1: import no_such_module\nc.barrier()\n",
        r"(?s)ZeroDivisionError.*\[1\] ModuleNotFoundError.*why: ModuleNotFoundError: ",
        "rank 1 …: ModuleNotFoundError: No module named …, after both tracebacks",
        stalls=False,
    ),
    ScriptFault(
        "a timer of `signal.alarm`",
        _MPI + "import signal\nif c.rank == 1: signal.alarm(1)\nwhile True: c.barrier()\n",
        r"rank 1 on \S+ was ended by SIGALRM \(a timer of its own, .*\n  fix: give it a handler",
        "rank 1 on host was ended by SIGALRM (a timer of its own, or someone else, sent it; …); "
        "give it a handler …",
        stalls=False,
    ),
    ScriptFault(
        "a message is longer than the buffer of its receiver",
        _MPI
        + "if c.rank == 0: c.Send(np.zeros(30), 1)\nelse: c.Recv(np.zeros(10), 0)\nc.barrier()\n",
        r"why: Exception: MPI_ERR_TRUNCATE: .*\n  fix: make the receive buffer as large",
        "rank 1 …: MPI_ERR_TRUNCATE: message truncated; make the receive buffer as large as the "
        "message …",
        stalls=False,
        mpi="openmpi5",
    ),
]
