"""Files and directories as commands are given them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


class GivenPath(click.Path):
    """A path. An empty one is refused: a shell makes it of a variable that is not set, and it would
    be the directory where the command was started."""

    def __init__(self, *, directory: bool = False) -> None:
        super().__init__(path_type=Path, file_okay=not directory)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value):
            self.fail("it is empty; accepted: a path", param, ctx)
        return super().convert(value, param, ctx)
