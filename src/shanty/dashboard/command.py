"""`shanty ui` and `shanty serve`: the dashboard, for oneself and for a team."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from shanty.client.context import Context, context, note
from shanty.client.terminal.old_flags import RemovingGroup
from shanty.client.terminal.options import json_option
from shanty.client.terminal.table import print_table
from shanty.runtime.errors import PrepareError, UsageError
from shanty.runtime.rundir import storage_errors

if TYPE_CHECKING:
    from shanty.dashboard.serving import Place
    from shanty.dashboard.users import OneUser, Role, Sees, Users

_PORT = 8470
_host_option = click.option(
    "--allowed-host", "allowed", multiple=True, metavar="NAME",
    help="Another name that it is reached by, as a proxy's (repeatable).",
)  # fmt: skip


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="[a free one]")
@click.option("--host", default="127.0.0.1", metavar="ADDRESS", help="[127.0.0.1]")
@_host_option
@click.option("--no-browser", is_flag=True, help="Only print the address.")
def ui(port: int, host: str, allowed: tuple[str, ...], no_browser: bool) -> None:
    """Show runs in the browser.

    The address contains a token: a person with this address may do what you may. Ctrl-C ends the
    dashboard; runs go on.

    \b
    Examples:
      shanty ui
      shanty ui --no-browser --port 8470
    """
    _need_packages()
    from shanty.dashboard.guard import is_loopback
    from shanty.dashboard.serving import Place, open_browser
    from shanty.dashboard.state import account
    from shanty.dashboard.users import OneUser

    if not is_loopback(host):
        raise UsageError(
            f"shanty ui is for this machine alone, and {host} is not",
            "what it sends is not encrypted",
            "for others: shanty serve; from elsewhere: ssh -L 8470:127.0.0.1:8470 HOST",
        )
    user = OneUser(account())

    def ready(url: str) -> None:
        # Browsers send what is behind a # to no server, so it is in no log and no Referer.
        page = f"{url}/#token={user.token}"
        print(page, flush=True)
        note("the dashboard is at that address; Ctrl-C ends it")
        if not no_browser:
            open_browser(page, here.home)

    here = context()
    _serve(here, user, Place(host, port, allowed), ready)


class _Serve(click.Group):
    """Serves where no verb follows."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find `users`; an error names what there is."""
        if args[0] not in self.commands:
            raise UsageError(
                f"shanty serve has no command {args[0]!r}", fix="users, or none to serve"
            )
        return super().resolve_command(ctx, args)


@click.group(cls=_Serve, invoke_without_command=True)
@click.option("--port", type=click.IntRange(0, 65535), default=_PORT, metavar="N", help="[8470]")
@click.option("--host", default="127.0.0.1", metavar="ADDRESS", help="[127.0.0.1]")
@_host_option
@click.option("--tls-cert", type=Path, metavar="FILE", help="A certificate, as PEM.")
@click.option("--tls-key", type=Path, metavar="FILE", help="Its private key, as PEM.")
@click.option("--insecure", is_flag=True, help="Serve other machines without encryption.")
@click.pass_context
def serve(
    ctx: click.Context,
    port: int,
    host: str,
    allowed: tuple[str, ...],
    tls_cert: Path | None,
    tls_key: Path | None,
    insecure: bool,
) -> None:
    """Serve the dashboard to several people.

    Each has a token (shanty serve users add). What they start runs under this account.
    For other machines, give --host and a certificate.

    \b
    Examples:
      shanty serve
      shanty serve --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem
    """
    if ctx.invoked_subcommand is not None:
        return
    _need_packages()
    from shanty.dashboard.serving import Place
    from shanty.dashboard.users import Users

    if (tls_cert is None) != (tls_key is None):
        raise UsageError("--tls-cert and --tls-key belong together", fix="give both, or none")
    for file in filter(None, (tls_cert, tls_key)):
        if not file.is_file():
            raise UsageError(f"file not found: {file}", fix="check --tls-cert and --tls-key")
    here = context()
    users = Users(here.home)
    if not users.all():
        raise UsageError(
            "the dashboard has no users",
            "nobody could sign in",
            "add one first: shanty serve users add NAME --role admin",
        )

    def ready(url: str) -> None:
        print(url, flush=True)
        if insecure and tls_cert is None:
            note("without a certificate, others on the network can read tokens and logs")
        note("Ctrl-C ends it; runs go on")

    _serve(here, users, Place(host, port, allowed, tls_cert, tls_key, insecure), ready)


@serve.group(cls=RemovingGroup)
def users() -> None:
    """Say who may use the dashboard."""


_NAME = click.argument("name")


@users.command()
@_NAME
@click.option(
    "--role", type=click.Choice(("admin", "user", "viewer")), required=True,
    help="admin: changes all; user: its own runs; viewer: none.",
)  # fmt: skip
@click.option(
    "--may", "may", nargs=2, type=(click.Choice(("see",)), click.Choice(("all", "own"))),
    metavar="see all|own", help="Whose runs it may see [all; a user: own].",
)  # fmt: skip
def add(name: str, role: str, may: tuple[str, str] | None) -> None:
    """Add a user, and print the token.

    It is printed this once; only its hash is kept.

    \b
    Examples:
      shanty serve users add ann --role admin
      shanty serve users add ben --role user --may see own
    """
    from shanty.dashboard.users import Users

    sees = may[1] if may else "own" if role == "user" else "all"
    token = Users(context().home).add(name, cast("Role", role), cast("Sees", sees))
    print(token)
    note(f"{name} signs in with this token on the dashboard's page; it is shown only now")


@users.command("list")
@json_option
def list_all(as_json: bool) -> None:
    """List the users.

    \b
    Example:
      shanty serve users list
    """
    from shanty.dashboard.users import Users

    found = Users(context().home).all()
    if as_json:
        keys = ("name", "role", "may_see", "created")
        print(json.dumps([{key: getattr(each, key) for key in keys} for each in found]))
    elif found:
        rows = [(each.name, each.role, each.may_see) for each in found]
        print_table(("USER", "ROLE", "SEES"), rows)
    else:
        print("no users")


@users.command()
@_NAME
def rm(name: str) -> None:
    """Remove a user, whose token is invalid from then on.

    \b
    Example:
      shanty serve users rm ben
    """
    from shanty.dashboard.users import Users

    Users(context().home).remove(name)
    note(f"{name} is removed")


def _need_packages() -> None:
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise PrepareError(
            "packages of the dashboard are missing",
            str(error),
            "pip install --upgrade shanty",
        ) from error


def _serve(
    here: Context, users: Users | OneUser, place: Place, ready: Callable[[str], None]
) -> None:
    from shanty.dashboard import serving
    from shanty.dashboard.state import Dashboard

    with storage_errors(here.home):
        here.home.mkdir(parents=True, exist_ok=True)
        if not os.access(here.home, os.W_OK):
            raise PermissionError(13, "Permission denied", str(here.home))
    listener = serving.listen(place)
    state = Dashboard(here.home, here.environ, here.settings, users)
    url = serving.address(place, listener)
    serving.serve(serving.make_server(state, place), listener, lambda: ready(url))
