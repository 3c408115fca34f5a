"""Finds the user of a request, and what that user may do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, Path, Request
from fastapi.security import HTTPBearer
from fastapi.security.http import HTTPAuthorizationCredentials
from starlette.responses import Response

from shanty.dashboard import state
from shanty.dashboard.errors import Refused
from shanty.dashboard.models import DownloadAddress
from shanty.dashboard.state import Dashboard
from shanty.dashboard.users import User, of_token
from shanty.runtime.rundir import RunDir, is_run_id

_BEARER = HTTPBearer(auto_error=False, description="A user's token.")
_LONGEST_TOKEN = 256
# For pages behind a proxy that wants the header `Authorization` for itself.
TOKEN_HEADER = "X-Shanty-Token"


def user_of(here: Dashboard, request: Request) -> User | None:
    """Return the user whose token is in a header of the request.

    Never from a cookie: a browser sends cookies to the servers on all ports of a host.
    """
    own = request.headers.get(TOKEN_HEADER)
    given = request.headers.get("authorization", "") if own is None else f"bearer {own}"
    kind, _, token = given.partition(" ")
    if kind.lower() != "bearer" or not 0 < len(token) <= _LONGEST_TOKEN:
        return None
    return of_token(here.users.all(), token.strip())


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who may read, and the server's state."""

    here: Dashboard
    user: User

    @property
    def only_of(self) -> str | None:
        """Return the owner whose runs alone may be seen; None for all."""
        return None if self.user.sees("") else self.user.name

    def run(self, run_id: str) -> RunDir:
        """Return the run of that id; 404 if it does not exist, or is not for this user to see.

        Nothing but an id gets to the file system.
        """
        if is_run_id(run_id):
            run = self.here.runs.directory(run_id)
            if run.path.is_dir() and self.user.sees(self.here.owner(run)):
                return run
        raise Refused(404, f"run {run_id[:64]!r} not found", "", "see the list of runs")

    def own_run(self, run_id: str) -> RunDir:
        """Return the run of that id to change it; 403 where that is not allowed."""
        run = self.run(run_id)
        owner = self.here.owner(run)
        if not self.user.changes(owner):
            raise Refused(
                403,
                f"this run is not yours to change: it is {owner}'s",
                f"{self.user.name} is {_ROLES[self.user.role]}",
                f"ask {owner}, or an admin",
            )
        return run

    def offer(self, make: Callable[[], Response]) -> DownloadAddress:
        """Return an address for what `make` answers; it raises now what it would raise there."""
        make()

        def answer() -> Response:
            if self.user not in self.here.users.all():
                raise Refused(401, f"{self.user.name} is not a user any more")
            return make()

        return DownloadAddress(url=self.here.downloads.offer(answer))


_ROLES = {"admin": "an admin", "user": "a user", "viewer": "a viewer, who changes nothing"}


def _caller(
    request: Request,
    _token: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)],
) -> Caller:
    """Return who asks; 401 without a token that is known."""
    here = state.of(request)
    user = user_of(here, request)
    if user is None:
        raise Refused(
            401,
            "you are not logged in",
            "the request has no token, or an unknown token",
            "open the address that `shanty ui` has printed, or log in with your token",
        )
    if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        raise Refused(403, "requests from pages of other servers are refused")
    return Caller(here, user)


def _changing(
    caller: Annotated[Caller, Depends(_caller)],
    x_shanty: Annotated[str | None, Header(description="Has to be there, as 1.")] = None,
) -> Caller:
    """Return who asks for a change; no page of another site can send that header."""
    if x_shanty is None:
        raise Refused(
            403,
            "the request has no header X-Shanty",
            "what changes something needs it, so that no other site's page can ask for it",
            "add the header X-Shanty: 1",
        )
    if caller.user.role == "viewer":
        raise Refused(403, f"{caller.user.name} is a viewer, who changes nothing")
    return caller


Reader = Annotated[Caller, Depends(_caller)]
Writer = Annotated[Caller, Depends(_changing)]
RunId = Annotated[str, Path(description="The id of a run.", max_length=64)]
