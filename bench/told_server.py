"""``magnetar``, which tells what its garbage collector does.

``python -m bench.told_server ARGUMENTS...`` with the variable ``PAUSES``: a file that gets a line
"GENERATION MS" for each collection, by the CPU time of the thread that collected.
"""

from __future__ import annotations

import gc
import os
import runpy
import time


def tell(path: str) -> None:
    file = open(path, "a", buffering=1)  # noqa: SIM115 - as long as the process
    begun = 0.0

    def told(phase: str, info: dict[str, int]) -> None:
        nonlocal begun
        if phase == "start":
            begun = time.thread_time()
        else:
            file.write(f"{info['generation']} {(time.thread_time() - begun) * 1000:.2f}\n")

    gc.callbacks.append(told)


if __name__ == "__main__":
    tell(os.environ["PAUSES"])
    runpy.run_module("magnetar", run_name="__main__", alter_sys=True)
