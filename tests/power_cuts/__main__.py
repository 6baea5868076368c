"""The long run: ``python -m tests.power_cuts [--cuts n] [--seed n] [--plant name] [--folder dir]``.

Machines of 20 cuts each, each with a disk and a seed of its own; every third is put in doubt on the
way. Prints the seed of what failed: ``--seed`` repeats its draws (what meets which moment is up to
the machine), and the disk is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from dataclasses import fields
from pathlib import Path

from magnetar.proving.power_cut.shim import NoCompilerError, build_shim
from tests.power_cuts.bookie import PLANTS
from tests.power_cuts.machine import Machine
from tests.power_cuts.run import BrokenPromiseError, Counts, PowerCuts, shared_metadata

CUTS_A_DISK = 20
DOUBT_AFTER = 8


async def _one(folder: Path, shim: Path, cuts: int, seed: int, plant: str, doubt: bool) -> Counts:
    async with shared_metadata() as (store, url):
        machine = Machine(folder, shim, url, plant)
        powered = PowerCuts(machine, store, seed)
        try:
            return await powered.run(cuts, DOUBT_AFTER if doubt and cuts > DOUBT_AFTER else None)
        except BrokenPromiseError:
            print(f"seed {seed}, after {powered.counts}", flush=True)
            raise
        finally:
            machine.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cuts", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--plant", choices=sorted(PLANTS), default="none")
    parser.add_argument("--folder", type=Path, help="where the disks lie; a temporary one")
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="power-cuts-"))
    try:
        shim = build_shim(folder)
    except NoCompilerError as error:
        print(f"skipped: {error}")
        return
    total, started = Counts(), time.monotonic()
    for number in range(-(-args.cuts // CUTS_A_DISK)):
        disk = folder / f"machine-{number}"
        disk.mkdir()
        cuts = min(CUTS_A_DISK, args.cuts - number * CUTS_A_DISK)
        try:
            found = asyncio.run(
                _one(disk, shim, cuts, args.seed + number, args.plant, number % 3 == 2)
            )
        except BrokenPromiseError as error:
            print(f"BROKEN (disk in {disk}): {error}")
            sys.exit(1)
        shutil.rmtree(disk)
        for each in fields(Counts):
            setattr(total, each.name, getattr(total, each.name) + getattr(found, each.name))
        print(f"seed {args.seed + number}: {found}", flush=True)
    print(f"{time.monotonic() - started:.0f} s, seeds from {args.seed}: {total}")
    if args.folder is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
