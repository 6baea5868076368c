"""The embedded metadata of a standalone for others on its machine: its brokers, if it has several,
and the commands of operators, which are given its data directory.

The socket is in a folder that nobody else may enter, for who reaches it may change everything; and
not in the data directory, for its path must be short. A file there says where (not a link: whoever
copies the directory would copy what it leads to), and which directory it is of: a copy of that is
another standalone's, and neither reaches this one nor takes its socket away.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final

import structlog

from magnetar.app.process import Process
from magnetar.env.files.data_dir import metadata_file
from magnetar.env.metadata import MetadataStore
from magnetar.env.metadata_stores.socket_metadata import SCHEME
from magnetar.env.metadata_stores.socket_metadata_server import MetadataServer
from magnetar.env.tasks import ends_role
from magnetar.model.errors import ConfigError, MetadataUnavailableError, StartError

log = structlog.get_logger(__name__)

SOCKET_NAME: Final = "metadata"
SOCKET_BYTES_MAX: Final = 107
"""Of a Unix socket's path (Linux)."""
PREFIX: Final = "magnetar-"
NOTE_NAME: Final = "metadata-socket"


async def share_metadata(process: Process, metadata: MetadataStore, data_dir: Path) -> str:
    """Let others have this process's metadata, until it ends; returns where. Raises
    ``StartError``."""
    path = socket_place(process.stack, data_dir)
    server = MetadataServer(metadata, ends_role(process.fate.fail))
    process.stack.push_async_callback(server.close)
    await server.start(path)
    return f"{SCHEME}{path}"


async def share_with_operators(process: Process, metadata: MetadataStore, data_dir: Path) -> None:
    """As ``share_metadata``, where nobody else needs it."""
    try:
        await share_metadata(process, metadata, data_dir)
    except (StartError, OSError) as error:
        log.warning("commands that ask for --metadata do not reach this process", why=str(error))


def socket_place(stack: AsyncExitStack, data_dir: Path) -> Path:
    """Where the socket is to be, until ``stack`` ends. What a process that was killed has left is
    removed: the data directory is ours alone, so that process has ended. Raises ``StartError``."""
    note = data_dir / NOTE_NAME
    left = _noted(data_dir)
    if left is not None and left.name.startswith(PREFIX):
        shutil.rmtree(left, ignore_errors=True)
    note.unlink(missing_ok=True)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX)))
    path = folder / SOCKET_NAME
    if len(os.fsencode(path)) > SOCKET_BYTES_MAX:
        raise StartError(
            f"the socket {path}, by which others are to reach the metadata, has a path of more "
            f"than {SOCKET_BYTES_MAX} bytes; set TMPDIR to a directory whose path is shorter"
        )
    with suppress(OSError):  # a disk that is full: brokers are told by their arguments
        note.write_bytes(os.fsencode(folder) + b"\n" + _identity(data_dir) + b"\n")
        stack.callback(note.unlink, missing_ok=True)
    return path


def _identity(data_dir: Path) -> bytes:
    """Of the directory itself: one that was copied has another."""
    found = data_dir.stat()
    return b"%d:%d" % (found.st_dev, found.st_ino)


def _noted(data_dir: Path) -> Path | None:
    """The folder of the socket, of a standalone on this very directory; None: none is known."""
    try:
        folder, _, of = (data_dir / NOTE_NAME).read_bytes().partition(b"\n")
        return Path(os.fsdecode(folder)) if of.strip() == _identity(data_dir) else None
    except OSError:
        return None


def find_metadata(data_dir: Path) -> str:
    """Where the standalone that runs on ``data_dir`` has its metadata. Raises ``ConfigError`` for
    what is no such directory, ``MetadataUnavailableError`` when it does not run."""
    if not (metadata_file(data_dir).exists() or (data_dir / NOTE_NAME).exists()):
        raise ConfigError(
            f"--metadata {str(data_dir)!r} cannot be used; accepted: zk://HOST:PORT[,HOST:PORT]/"
            "ROOT, or the data directory of a standalone (one that was started with --metadata "
            "zk://... is asked by that)"
        )
    folder = _noted(data_dir)
    if folder is None:
        raise _not_running(data_dir)
    path = folder / SOCKET_NAME
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(os.fspath(path))
        except PermissionError as error:
            raise MetadataUnavailableError(
                f"the standalone of {data_dir} is another user's: give this command as that user"
            ) from error
        except OSError as error:
            raise _not_running(data_dir) from error
    return f"{SCHEME}{path}"


def _not_running(data_dir: Path) -> MetadataUnavailableError:
    return MetadataUnavailableError(
        f"the standalone of {data_dir} does not run, or is of an earlier release: this command "
        "asks it and its bookies. Start it (magnetar standalone --data-dir "
        f"{data_dir}, with as many --bookies as it has) and give the command again"
    )
