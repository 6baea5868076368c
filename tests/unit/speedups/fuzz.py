"""The two twins on the same bytes, as many as you like.

    python -m tests.unit.speedups.fuzz [--chunks 100000] [--first 0] [--module FILE]

Chunk n is made of seed n, so a difference is found again by its number. ``--module`` compares
another build than the one that is imported: one with sanitizers (``make fuzz SANITIZE=1``).
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import sys
import time
from pathlib import Path
from typing import Any

from magnetar.speedups import pure
from tests.unit.speedups.chunks import answer, arguments


def loaded(file: Path | None) -> Any:
    """The module in C."""
    if file is None:
        return importlib.import_module("magnetar._speedups")
    spec = importlib.util.spec_from_file_location("magnetar._speedups", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def difference(native: Any, seed: int) -> str | None:
    """What the twins say of chunk ``seed``, if they do not say the same."""
    call = arguments(random.Random(seed))
    expected, found = answer(pure, call), answer(native, call)
    if found == expected:
        return None
    called = f"{call[0]}{call[1]!r:.2000}"
    return f"seed {seed}, {called}\n  Python: {expected!r:.2000}\n  C: {found!r:.2000}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--module", type=Path)
    args = parser.parse_args()
    native = loaded(args.module)
    began = time.monotonic()
    for seed in range(args.first, args.first + args.chunks):
        wrong = difference(native, seed)
        if wrong is not None:
            sys.exit(wrong)
        if seed % 100_000 == 99_999:
            print(f"{seed + 1 - args.first} chunks, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{args.chunks} chunks from {args.first} on: no difference")


if __name__ == "__main__":
    main()
