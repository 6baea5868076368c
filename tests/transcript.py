"""Golden transcripts: a machine's story, told by commands and what it answers.

A transcript is a text file. Lines that begin with ``#`` tell the story, ``> COMMAND ARGUMENTS`` is
given to the machine, and the indented lines after it are its whole answer:

    # Two of three bookies hold the first four entries, so these are confirmed.
    > acknowledged slot=1 ids=0-3
      lac 3

``UPDATE_TRANSCRIPTS=1`` writes the answers anew; whoever does so reads the difference.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

Answer = Callable[[Mapping[str, str]], str]
INDENT = "  "


def check(path: Path, commands: Mapping[str, Answer]) -> None:
    """Play ``path`` and compare; ``commands`` by name take their arguments as text."""
    told = path.read_text(encoding="utf-8")
    played = "".join(_play(told.splitlines(), commands, path))
    if os.environ.get("UPDATE_TRANSCRIPTS"):
        path.write_text(played, encoding="utf-8")
    assert told == played, f"{path.name} tells another story; UPDATE_TRANSCRIPTS=1 writes this one"
    assert INDENT in played, f"{path.name} asserts nothing"


def _play(lines: list[str], commands: Mapping[str, Answer], path: Path) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if line.startswith(INDENT):
            continue  # an answer: written anew from the command before it
        yield line + "\n"
        if line.startswith("> "):
            name, *words = line[2:].split()
            assert name in commands, f"{path.name}:{number}: no command {name}"
            answer = commands[name](dict(word.split("=", 1) for word in words))
            yield from (f"{INDENT}{text}\n" for text in answer.splitlines())


def numbers(text: str) -> list[int]:
    """``0-3,7`` as [0, 1, 2, 3, 7]; ``-`` is none."""
    found: list[int] = []
    for part in text.split(",") if text != "-" else ():
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def in_words(values: list[int]) -> str:
    """The inverse of ``numbers``."""
    runs: list[tuple[int, int]] = []
    for value in values:
        if runs and value == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], value)
        else:
            runs.append((value, value))
    return ",".join(f"{a}-{b}" if b > a else str(a) for a, b in runs) or "-"
