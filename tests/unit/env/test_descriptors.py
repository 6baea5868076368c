"""Who gets the file descriptors."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys

import pytest

from magnetar.env.files.descriptors import plan_descriptors
from magnetar.env.files.disk_space import is_no_descriptor
from magnetar.model.errors import BookieIOError


@pytest.mark.parametrize(
    ("limit", "wanted", "reserved", "http", "others"),
    [
        (1 << 20, 1024, 1024, 2048, 2944),
        (1 << 20, 1 << 16, 1 << 16, 2048, 1 << 16),
        (20_000, 1024, 1024, 753, 1649),
        (2048, 1024, 1024, 192, 1088),
        (1024, 1024, 682, 117, 714),
        (80, 1024, 53, 8, 55),
    ],
)
def test_storage_has_its_share_whatever_the_limit(
    limit: int, wanted: int, reserved: int, http: int, others: int
) -> None:
    plan = plan_descriptors(limit, wanted)
    assert plan.reserved == reserved
    assert plan.http_connections_max == http
    assert plan.others_max == others
    assert plan.connections_max == limit - others
    assert others - http >= reserved * 7 // 8, "what files have"


def test_the_limit_is_raised_as_far_as_allowed() -> None:
    hard = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 4000)
    code = (
        "import resource\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (100, {hard}))\n"
        "from magnetar.env.files.descriptors import raise_limit\n"
        "print(raise_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.split() == [str(hard), str(hard)]


def test_no_descriptor_is_told_from_a_bad_disk() -> None:
    assert is_no_descriptor(OSError(errno.EMFILE, "x"))
    told = BookieIOError("location index /x: IO error: While open a file: Too many open files")
    assert is_no_descriptor(told)
    wrapped = BookieIOError("flush")
    wrapped.__cause__ = OSError(errno.ENFILE, "x")
    assert is_no_descriptor(wrapped)
    assert not is_no_descriptor(OSError(errno.EIO, "x"))
    assert not is_no_descriptor(None)
