"""How results look: tables for people, JSON for programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

WIDE_COLUMNS = 240
"""Table width where no terminal sets one, so that nothing is cut in a file or a pipe."""


def json_option(command: F) -> F:
    """``--json`` for commands that print a table."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(
        command
    )


def print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table; columns whose name ends in ``#`` are numbers, and right-aligned."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        number = column.endswith("#")
        table.add_column(
            column.removesuffix("#"), justify="right" if number else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    width = None if sys.stdout.isatty() else WIDE_COLUMNS
    Console(width=width, markup=False, highlight=False).print(table)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def drop_output() -> None:
    """Standard output takes nothing (any more): what is left of it would fail again at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def binary(size: int) -> str:
    """``5.2 MiB``."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{int(amount)} B" if unit == "B" else f"{amount:.1f} {unit}"
