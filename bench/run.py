"""All benchmarks, one after the other: ``make bench``, or ``python bench/run.py [--quick]``.

Each is a module of its own and writes to ``bench/results/``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BENCHMARKS = (
    "bench.codec",
    "bench.log_engine",
    "bench.ledger_store",
    "bench.throughput",
    "bench.latency",
)


def main() -> int:
    failed = 0
    for name in BENCHMARKS:
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", name, *sys.argv[1:]]
        failed |= subprocess.run(command, cwd=ROOT, check=False).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
