"""What Flyte makes of an MPI task on a cluster, and reads of it; run by the Python of flytekit.

    flyte_plugin.py manifest MODULE TASK FOLDER JSON IMAGE PYTHON [CODE]    prints the MPIJob
    flyte_plugin.py outputs MODULE TASK FOLDER                              prints what it has left

Inputs and outputs are in FOLDER. PYTHON is the path of the image's, with flytekit. CODE is an
archive of the code, which then is not in the image.
flytekit's plugin has the command, and the backend fills in where inputs and outputs are: it is in
Go, and its part is done here (flyteplugins/go/tasks/plugins/k8s/kfoperators/mpi/mpi.go).
"""

import importlib
import json
import sys
from pathlib import Path

from flyteidl.core.literals_pb2 import LiteralMap
from flytekit.configuration import FastSerializationSettings, ImageConfig, SerializationSettings
from flytekit.core.context_manager import FlyteContextManager
from flytekit.core.type_engine import TypeEngine
from flytekit.models import literals
from flytekit.tools.translator import get_serializable


def manifest(task, folder, inputs, image, python, code=None):
    context = FlyteContextManager.current_context()
    given = TypeEngine.dict_to_literal_map(context, inputs, task.python_interface.inputs)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "inputs.pb").write_bytes(given.to_flyte_idl().SerializeToString())
    settings = SerializationSettings(
        ImageConfig.auto(img_name=image), "project", "domain", "version",
        python_interpreter=python,
        fast_serialization_settings=FastSerializationSettings(bool(code), ".", code),
    )  # fmt: skip
    template = get_serializable({}, settings, task).template
    custom, container = template.custom, template.container
    values = {
        "{{.input}}": f"{folder}/inputs.pb",
        "{{.outputPrefix}}": f"{folder}/outputs",
        "{{.rawOutputDataPrefix}}": f"{folder}/raw",
        "{{.checkpointOutputPrefix}}": f"{folder}/checkpoints",
        "{{.prevCheckpointPrefix}}": '""',
    }
    env = [{"name": name, "value": value} for name, value in container.env.items()]
    line = [values.get(word, word) for word in container.args]

    def replica(kind, args):
        spec = {"name": "mpi", "image": container.image, "args": args, "env": env}
        pod = {"spec": {"containers": [spec], "restartPolicy": "Never"}}
        return {"replicas": custom[kind]["replicas"], "template": pod}

    replicas = {
        "Launcher": replica("launcherReplicas", line),
        "Worker": replica("workerReplicas", ["sleep", "365d"]),
    }
    spec = {"slotsPerWorker": custom["slots"], "mpiReplicaSpecs": replicas}
    names = {"name": "a-task-n0-0"}
    return {"apiVersion": "kubeflow.org/v1", "kind": "MPIJob", "metadata": names, "spec": spec}


def outputs(task, folder):
    data = LiteralMap.FromString((folder / "outputs/outputs.pb").read_bytes())
    context = FlyteContextManager.current_context()
    found = TypeEngine.literal_map_to_kwargs(
        context, literals.LiteralMap.from_flyte_idl(data), task.python_interface.outputs
    )
    return {name: str(value) for name, value in found.items()}


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    what, module, name, *rest = sys.argv[1:]
    the_task = getattr(importlib.import_module(module), name)
    if what == "manifest":
        print(json.dumps(manifest(the_task, Path(rest[0]), json.loads(rest[1]), *rest[2:])))
    else:
        print(json.dumps(outputs(the_task, Path(rest[0]))))
