"""The part of the form that targets declare: their options."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from shanty.client.options import find
from shanty.dashboard.models import FieldProblem, Form, FormOption, TargetForm
from shanty.launch.options import known
from shanty.launch.options.option import Option
from shanty.runtime.errors import UsageError
from shanty.runtime.spec import JobSpec


def targets() -> list[TargetForm]:
    """Return the targets that have options, with those that a form can have."""
    found = [
        TargetForm(
            scheme=each.scheme,
            title=each.title,
            options=[_offered(option) for option in each.options if _is_in_form(option)],
        )
        for each in known.every()
    ]
    return [each for each in found if each.options]


def _is_in_form(option: Option) -> bool:
    """Return true for what has no field of its own in the form, and takes no file."""
    return not option.is_file and option.field not in JobSpec.__dataclass_fields__


def _offered(option: Option) -> FormOption:
    kind: Literal["text", "number", "switch", "list"] = "text"
    if option.repeatable:
        kind = "list"
    elif option.kind in (bool, int):
        kind = "switch" if option.kind is bool else "number"
    return FormOption(
        name=option.field,
        flag=option.flag,
        help=option.help,
        kind=kind,
        words=list(option.choices),
    )


def values(form: Form) -> dict[str, Any]:
    """Return the options of a form that targets declare, by their names."""
    return {
        name: value
        for name, value in form.options.items()
        if (option := find(name)) is not None and _is_in_form(option)
    }


def kept(job: JobSpec) -> set[str]:
    """Return the options of a job that a form does not have."""
    options = {name: find(name) for name in job.options}
    return {name for name, each in options.items() if each is None or not _is_in_form(each)}


def of_job(job: JobSpec) -> dict[str, bool | str | list[str]]:
    """Return the options of a job that a form can have, as the form has them."""
    found: dict[str, bool | str | list[str]] = {}
    for name in job.options.keys() - kept(job):
        value = job.options[name]
        several = isinstance(value, (list, tuple))
        found[name] = list(map(str, value)) if several else value if value is True else str(value)
    return found


def problems(form: Form) -> Iterator[FieldProblem]:
    """Yield what is wrong with the options of a form."""
    target = known.declared((form.on or "").partition(":")[0])
    folder = Path(form.source.path or "/")
    for name, value in form.options.items():
        option, what = find(name), ""
        if option is None or not _is_in_form(option):
            what = f"the form has no option {name}"
        elif target is None or name not in target.fields:
            what = f"{option.flag} is not for {form.on or 'this machine'}"
        elif option.kind is int and not _is_number(option, value):
            what = f"{option.flag} takes a whole number from {option.least or 0}"
        elif option.read is not None and option.kind is not int:
            try:
                option.read(value, option.flag, folder)
            except UsageError as error:
                yield FieldProblem(field=f"options.{name}", what=error.what, fix=error.fix)
        if what:
            yield FieldProblem(field=f"options.{name}", what=what)


def _is_number(option: Option, value: object) -> bool:
    return str(value).isdecimal() and int(str(value)) >= (option.least or 0)
