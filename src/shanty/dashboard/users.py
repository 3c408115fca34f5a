"""Users of the dashboard and their tokens; of a token only the hash is kept.

`<home>/users.json`, for its owner alone to read:

    {"users": [{"name": "ann", "role": "user", "may_see": "own", "hash": "…", "created": 0.0}]}

A token is 256 random bits, so one round of SHA-256 is enough: no token can be guessed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from shanty.runtime.errors import NotFoundError, StorageError, UsageError
from shanty.runtime.rundir import read_json, storage_errors, write_json

Role = Literal["admin", "user", "viewer"]
Sees = Literal["all", "own"]
ROLES: tuple[Role, ...] = get_args(Role)
SEES: tuple[Sees, ...] = get_args(Sees)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who may use the dashboard.

    An admin may see and change all; a user sees all or its own, as `may_see` says, and changes its
    own; a viewer changes nothing.
    """

    name: str
    role: Role
    may_see: Sees
    hash: str
    created: float

    def sees(self, owner: str) -> bool:
        """Return true where this user may see a run of `owner`."""
        return self.role == "admin" or self.may_see == "all" or owner == self.name

    def changes(self, owner: str) -> bool:
        """Return true where this user may stop or delete a run of `owner`."""
        return self.role == "admin" or (self.role == "user" and owner == self.name)


def new_token() -> tuple[str, str]:
    """Return a random token, and its hash."""
    token = secrets.token_urlsafe(32)
    return token, hashed(token)


def hashed(token: str) -> str:
    """Return what is kept of a token."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def of_token(users: Iterable[User], token: str) -> User | None:
    """Return whose token it is; it takes as long for any token."""
    given, found = hashed(token), None
    for user in users:
        if hmac.compare_digest(user.hash, given):
            found = user
    return found


class Users:
    """The users of `shanty serve`, read from their file at each request."""

    def __init__(self, home: Path) -> None:
        self.file = home / "users.json"

    def all(self) -> list[User]:
        """Return all users. StorageError where others may read their file, or it is damaged."""
        try:
            mode = self.file.stat().st_mode
        except FileNotFoundError:
            return []
        if mode & 0o077:
            raise StorageError(
                f"others may read {self.file}", "", f"chmod 600 {self.file}, and give new tokens"
            )
        values = read_json(self.file)
        try:
            users = [User(**each) for each in (values or {})["users"]]
            if any(u.role not in ROLES or u.may_see not in SEES for u in users):
                raise ValueError
        except (KeyError, TypeError, ValueError):
            why = "it is not what shanty writes"
            raise StorageError(
                f"{self.file} is damaged", why, "repair it, or remove it and add the users again"
            ) from None
        return users

    def add(self, name: str, role: Role, may_see: Sees) -> str:
        """Add a user and return the token; UsageError for a name that is taken or invalid."""
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} cannot be the name of a user",
                "a name has letters, digits, '.', '_', '@' and '-', at most 64",
            )
        users = self.all()
        if any(user.name == name for user in users):
            raise UsageError(
                f"user {name!r} exists already",
                fix=f"for a new token: shanty serve users rm {name}, then add it again",
            )
        token, digest = new_token()
        self._write([*users, User(name, role, may_see, digest, time.time())])
        return token

    def remove(self, name: str) -> None:
        """Remove a user, whose token is invalid from now on; NotFoundError for an unknown user."""
        users = self.all()
        if all(user.name != name for user in users):
            raise NotFoundError(
                f"user {name!r} not found", fix="`shanty serve users list` lists all users"
            )
        self._write([user for user in users if user.name != name])

    def _write(self, users: list[User]) -> None:
        with storage_errors(self.file):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            before = os.umask(0o077)
            try:
                write_json(self.file, {"users": [asdict(user) for user in users]})
            finally:
                os.umask(before)


class OneUser:
    """The only user of `shanty ui`: the person who started it."""

    def __init__(self, name: str) -> None:
        self.token, digest = new_token()
        self._user = User(name, "admin", "all", digest, time.time())

    def all(self) -> list[User]:
        """Return that user."""
        return [self._user]
