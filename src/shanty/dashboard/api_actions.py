"""Addresses that change something: stop, repeat, delete and tag runs, start new ones."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool

from shanty.client.command_line import contents
from shanty.client.plain import text, whole
from shanty.client.tags import retag
from shanty.dashboard import form as forms
from shanty.dashboard import machines, program, target_options
from shanty.dashboard.access import Caller, Reader, RunId, Writer
from shanty.dashboard.api_runs import entry_of
from shanty.dashboard.detail import summary
from shanty.dashboard.errors import STARTING, Refused
from shanty.dashboard.models import (
    Changes,
    Form,
    FormPreview,
    Id,
    Stacks,
    Stop,
    Suggestions,
    Summary,
    TagChange,
)
from shanty.launch import mpis
from shanty.launch.index import Changes as Changed
from shanty.launch.index import Runs, read_job
from shanty.launch.run_query import Query
from shanty.launch.stack_text import text_of
from shanty.runtime.errors import ShantyError
from shanty.runtime.rundir import RunDir, storage_errors
from shanty.runtime.spec import JobSpec

router = APIRouter(responses=STARTING, tags=["actions"])
_PATIENCE = 1800.0  # seconds in which hosts are prepared
_RECENT = 50  # runs whose images and folders the form offers


def _job_of(run: RunDir) -> JobSpec:
    job = read_job(run)
    if job is None:
        raise Refused(409, "job.json is missing or damaged, so the job is not known")
    return job


def _reread(caller: Caller, run: RunDir) -> Changed:
    return Changed(caller.here.runs.reread([run]), [])


@router.post("/runs/{run_id}/stop")
def stop(caller: Writer, run_id: RunId, how: Stop) -> Id:
    """Stop a run: SIGTERM to its ranks, and SIGKILL where that does not help.

    It returns once the run was asked to stop; a run that has ended stays as it is.
    """
    run = caller.own_run(run_id)
    grace = 0.0 if how.kill else caller.here.settings.stop_grace
    caller.here.targets().cancel(run, grace)
    return Id(id=run.id)


@router.get("/runs/{run_id}/form")
def form(caller: Reader, run_id: RunId) -> Form:
    """Return the form of a run like this one; a mask stands for values that look secret."""
    try:
        return forms.form_of(_job_of(caller.run(run_id)))
    except (TypeError, ValueError) as error:  # a newer shanty may write other values
        raise Refused(409, "the job has values that the form does not", str(error)) from None


@router.post("/runs/{run_id}/rerun")
async def rerun(caller: Writer, run_id: RunId, given: Changes) -> Id:
    """Run a job again, as a new run, with the fields changed that are given."""
    run = await run_in_threadpool(caller.run, run_id)
    owner = caller.here.owner(run)
    if not caller.user.changes(owner):  # what the job hides is not theirs to use
        raise Refused(403, f"this run is {owner}'s", "", "start a new run from the form")
    if given.changes.model_fields_set:
        job = await run_in_threadpool(_job_of, run)
        return await _run(caller, forms.again(job, given.changes), [*contents(job).values()])
    return await _submitted(caller, ["rerun", run.id, "--detach", "--json"])


@router.delete("/runs/{run_id}")
async def delete(caller: Writer, run_id: RunId) -> Id:
    """Delete an ended run, its logs and its artifacts; 409 for an active run."""

    def work() -> str:
        run = caller.own_run(run_id)
        if not entry_of(caller, run).status.state.final:
            fix = "stop it first"
            raise Refused(409, f"run {run.id} is still active", "", fix)
        Runs(caller.here.home, caller.here.targets()).remove(run)
        return run.id

    found = await run_in_threadpool(work)
    changes = await run_in_threadpool(caller.here.runs.refresh, lambda _run: False)
    caller.here.hub.publish(Changed(changes.entries, sorted({*changes.gone, found})))
    return Id(id=found)


@router.post("/runs/{run_id}/tags")
async def tags(caller: Writer, run_id: RunId, change: TagChange) -> Summary:
    """Put tags on a run and take some off; they are kept with the job."""

    def work() -> Changed:
        run = caller.own_run(run_id)
        known = entry_of(caller, run).tags
        there = [tag for tag in change.remove if tag in known]
        retag(caller.here.runs, run, change.add, there)
        return _reread(caller, run)

    changes = await run_in_threadpool(work)
    caller.here.hub.publish(changes)
    (entry,) = changes.entries or caller.here.runs.known([run_id])
    return summary(entry, caller.here.account)


@router.post("/runs/{run_id}/stacks")
def stacks(caller: Writer, run_id: RunId) -> Stacks:
    """Return the stack of every rank of an active run."""
    run = caller.own_run(run_id)
    status = entry_of(caller, run).status
    reply = caller.here.targets().stacks(run)
    if not reply.ok:
        raise Refused(409, f"run {run.id}: {reply.error}", "", "only an active run has stacks")
    found = {each["rank"]: each for each in reply.stacks}
    texts = {
        str(rank): text(text_of(each, all_threads=False))
        for rank, each in sorted(found.items())
        if "error" not in each
    }
    missing = [rank for rank in range(whole(status.ranks) or 0) if str(rank) not in texts]
    return Stacks(ranks=texts, missing=missing)


@router.post("/preview")
def preview(caller: Reader, form: Form) -> FormPreview:
    """Return the line that does what a form says, and what is wrong with the form so far."""
    if caller.user.role == "viewer":
        raise Refused(403, f"{caller.user.name} is a viewer, who starts nothing")
    problems = forms.problems(form, caller.here.home)
    return FormPreview(command=forms.line(form), problems=problems)


@router.post("/runs")
async def start(caller: Writer, form: Form) -> Id:
    """Start a run. Its hosts are prepared first, which may take minutes."""
    for problem in await run_in_threadpool(forms.problems, form, caller.here.home):
        raise Refused(422, f"{problem.field}: {problem.what}", "", problem.fix)
    return await _run(caller, [*forms.words(form, shown=False), *forms.command(form.command)])


@router.get("/suggest")
def suggest(caller: Reader) -> Suggestions:
    """Return what the form may offer; images and folders are those of one's own last runs."""
    here = caller.here
    own = Query(limit=_RECENT, account=here.account, only_of=caller.user.name)
    entries, _ = here.runs.page(own)
    jobs = [job for entry in entries if (job := read_job(here.runs.directory(entry.id)))]
    try:
        known = [each.flavour for each in mpis.installed(here.home, dict(here.environ))]
    except ShantyError:  # none is there
        known = []
    return Suggestions(
        targets=target_options.targets(),
        types=machines.types(here.home),
        groups=machines.groups(here.home),
        mpis=list(dict.fromkeys(known)),
        images=list(dict.fromkeys(text(job.image) for job in jobs if job.image)),
        workspaces=list(dict.fromkeys(text(job.workdir) for job in jobs if job.source is None)),
    )


async def _run(caller: Caller, words: list[str], texts: Sequence[str] = ()) -> Id:
    """Start a run of the words; in place of the `texts` options take files that have them."""
    with tempfile.TemporaryDirectory(prefix="shanty-form-") as folder:
        for number, content in enumerate(texts):
            file = Path(folder, f"content-{number}")
            file.write_text(content, encoding="utf-8")
            words = [str(file) if word == content else word for word in words]
        return await _submitted(caller, ["run", "--detach", "--json", *words])


async def _submitted(caller: Caller, words: list[str]) -> Id:
    """Start a run by `shanty` itself, and write down whose it is."""
    here = caller.here
    if here.submitting.locked():
        raise Refused(409, "too many runs are being started", "", "try again in a moment")
    async with here.submitting:
        kept, environ = program.hidden(words, here.environ)
        done = await program.shanty(kept, here.home, environ, _PATIENCE)
    run = here.runs.directory(program.submitted(done))

    def own() -> Changed:
        if caller.user.name != here.account:
            with storage_errors(run.owner):
                run.owner.write_text(f"{caller.user.name}\n", encoding="utf-8")
        return _reread(caller, run)

    here.hub.publish(await run_in_threadpool(own))
    return Id(id=run.id)
