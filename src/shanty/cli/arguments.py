"""Arguments that several verbs share."""

from __future__ import annotations

from typing import Annotated

import typer

RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="An id, the start of one, a name, or `last`.")
]
