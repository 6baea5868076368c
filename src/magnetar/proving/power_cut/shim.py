"""The shim that writes down what a process does to its files (``shim.c``), built where it is used.

Why: docs/adr/0103-power-cuts-under-a-shim.md.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SHIM: Final = Path(__file__).with_name("shim.c")


class NoCompilerError(Exception):
    """There is nothing to build the shim with."""


def build_shim(folder: Path) -> Path:
    """The shim, built with the system's compiler. Raises ``NoCompilerError`` with the reason."""
    if not sys.platform.startswith("linux"):
        raise NoCompilerError("the shim speaks Linux's system calls")
    names = ("cc", "gcc", "clang", (sysconfig.get_config_var("CC") or "cc").split()[0])
    compiler = next((found for name in names if (found := shutil.which(name))), None)
    if compiler is None:
        raise NoCompilerError("no C compiler (cc, gcc, clang) is here to build the shim with")
    built = folder / "shim.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(built), str(SHIM), "-ldl"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise NoCompilerError(f"{compiler} cannot build the shim: {made.stderr[:500]}")
    return built


def under_shim(shim: Path, root: Path, trace: Path, cut_after: int = 0) -> Mapping[str, str]:
    """The environment of a process whose changes below ``root`` are written down in ``trace``; it
    is killed before its ``cut_after``-th change (0: never)."""
    return {
        "LD_PRELOAD": str(shim),
        "POWER_ROOT": str(root),
        "POWER_TRACE": str(trace),
        "POWER_CUT_AFTER": str(cut_after),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
