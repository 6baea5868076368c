"""What the shim says of files that are mapped into memory, of ``remove``, and of descriptors that
are closed by ``closedir`` and used again, as JVMs have all of them."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from magnetar.proving.power_cut.disk import ModelDisk, TraceError
from magnetar.proving.power_cut.shim import NoCompilerError, build_shim, under_shim
from magnetar.proving.power_cut.trace import ChangeKind, read_trace

PROCESS = """
import ctypes, mmap, os, sys
root = sys.argv[1]
for name in ("segment.log", "segment.index", "gone", "read"):
    with open(f"{root}/{name}", "wb") as file:
        file.write(bytes(4096))
        file.flush()
        os.fsync(file.fileno())
os.mkdir(f"{root}/folder")
with open(f"{root}/segment.index", "r+b") as file, mmap.mmap(file.fileno(), 4096) as there:
    there[0] = 1
with open(f"{root}/read", "rb") as file:
    mmap.mmap(file.fileno(), 4096, access=mmap.ACCESS_READ).close()
remove = ctypes.CDLL(None).remove
assert not remove(f"{root}/gone".encode())
assert not remove(f"{root}/folder".encode())
assert remove(f"{root}/never".encode())
folder = os.open(root, os.O_RDONLY)
os.fsync(folder)
library = ctypes.CDLL(None)
library.fdopendir.restype = ctypes.c_void_p
library.closedir.argtypes = [ctypes.c_void_p]
assert not library.closedir(library.fdopendir(folder))
other = os.eventfd(0)
assert other == folder
os.write(other, (1).to_bytes(8, "little"))
"""


@pytest.fixture
def traced(tmp_path: Path) -> tuple[Path, Path]:
    """(what the process did to an empty directory, that directory)."""
    try:
        shim = build_shim(tmp_path)
    except NoCompilerError as error:
        pytest.skip(str(error))
    root, trace = tmp_path / "root", tmp_path / "trace"
    root.mkdir()
    environment = {**os.environ, **under_shim(shim, root, trace)}
    subprocess.run([sys.executable, "-c", PROCESS, str(root)], env=environment, check=True)
    return trace, root


def empty_disk(root: Path, rebuilt: tuple[str, ...] = ()) -> ModelDisk:
    for each in root.iterdir():
        each.unlink()
    return ModelDisk(root, rebuilt)


def test_what_is_mapped_and_made_again_is_gone(traced: tuple[Path, Path], tmp_path: Path) -> None:
    trace, root = traced
    changes = list(read_trace(trace))
    assert sum(each.kind is ChangeKind.MAPPED for each in changes) == 1, "one is written to"
    disk = empty_disk(root, (".index",))
    disk.feed(changes)
    assert set(disk.contents()) == {"segment.log", "segment.index", "read"}
    disk.write(tmp_path / "after", random.Random(1), 0.0)
    left = {each.name: each.read_bytes() for each in (tmp_path / "after").iterdir()}
    assert left == {"segment.log": bytes(4096), "read": bytes(4096)}


def test_what_is_mapped_and_not_made_again_is_refused(
    traced: tuple[Path, Path], tmp_path: Path
) -> None:
    trace, root = traced
    with pytest.raises(TraceError, match="mapped"):
        empty_disk(root).feed(read_trace(trace))
    disk = empty_disk(root, (".other",))
    disk.feed(read_trace(trace))
    with pytest.raises(TraceError, match=r"segment\.index is mapped"):
        disk.write(tmp_path / "after", random.Random(1), 0.0)
