"""Small file systems of their own, for disks that fill up. Mounting takes root; who has no right to
it skips."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

KINDS = ("tmpfs", "ext4")


@contextmanager
def small_disk(folder: Path, kind: str, size_bytes: int) -> Iterator[Path]:
    """A directory in ``folder`` on a file system of ``size_bytes``."""
    mounted_at = folder / "disk"
    mounted_at.mkdir(parents=True)
    if not _mount(folder / "image", kind, size_bytes, mounted_at):
        pytest.skip(f"cannot mount a {kind} here (needs root)")
    try:
        yield mounted_at
    finally:
        for _ in range(50):
            if _run("umount", str(mounted_at)):
                break
            time.sleep(0.1)
        else:
            _run("umount", "-l", str(mounted_at))


def _mount(image: Path, kind: str, size_bytes: int, mounted_at: Path) -> bool:
    if kind == "tmpfs":
        return _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(mounted_at))
    with image.open("wb") as file:
        file.truncate(size_bytes)
    mkfs = shutil.which("mkfs.ext4", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    made = mkfs is not None and _run(mkfs, "-q", "-m", "0", str(image))
    return made and _run("mount", "-o", "loop", str(image), str(mounted_at))


def _run(*command: str) -> bool:
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    return False


def fill_up(disk: Path) -> Path:
    """Take every byte that is left, as somebody else would; returns the file that has them."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 20, 4096, 512, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
    return filler


def free_bytes(disk: Path) -> int:
    stat = os.statvfs(disk)
    return stat.f_bavail * stat.f_frsize
