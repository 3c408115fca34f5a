"""What a machine elsewhere has a login node do with Slurm: check a job, submit it.

How such a run stands, and its end, are asked as those of other runs (`runs`).
"""

from __future__ import annotations

import os
import shutil
from typing import Any, Dict

from shanty.runtime import site
from shanty.runtime.plan import Plan
from shanty.runtime.rpc import Ask, Data, Say
from shanty.runtime.rpc.runs import folder_of, write_down
from shanty.runtime.rundir import home
from shanty.runtime.site import Site
from shanty.runtime.slurm import queue, submit, tools
from shanty.runtime.spec import JobSpec


def slurm_check(ask: Ask, _data: Data, _say: Say) -> Dict[str, Any]:
    """`job mpi`: find out what keeps a job from ever being run here."""
    tools.find()
    request = submit.check(JobSpec.from_json(ask["job"]), ask["mpi"])
    submit.need_shared(str(home(os.environ)), os.path.expanduser("~"))
    return {"request": request.words()}


def slurm_submit(ask: Ask, _data: Data, say: Say) -> Dict[str, Any]:
    """`run plan job status files`: write the run down and queue it; `name` is the job's number.

    No job is left where the client has gone meanwhile.
    """
    tools.find()
    run = folder_of(ask["run"], 0)
    run.create()
    where = Site(queue.SlurmQueue.scheme)
    try:
        write_down(run, ask)
        site.write(run, where)
        plan, job = Plan.from_json(ask["plan"]), JobSpec.from_json(ask["job"])
        where = where._replace(name=submit.submit(run, plan, job))
        site.write(run, where)
        say({"queued": where.name})  # BrokenPipeError where the client is gone
    except BaseException:
        if where.name:
            queue.cancel(where.name)
        shutil.rmtree(run.path, ignore_errors=True)
        raise
    return {"name": where.name, "path": str(run.path)}
