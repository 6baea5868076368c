"""A small file that is read again when it has changed: certificates, users, tokens.

It is looked at (one ``stat``) when its value is asked for, which is when somebody connects; an idle
process does nothing. A changed file that cannot be read or decoded leaves the value that was, and
says so once: a half-written file must not lock everybody out. Files of configuration are no part of
the disk seam: they are the operator's, not the platform's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

import structlog

from magnetar.model.errors import ConfigError

T = TypeVar("T")
Stamp: TypeAlias = tuple[int, int, int]

log = structlog.get_logger(__name__)


class WatchedFile(Generic[T]):
    """``decode(bytes, name)`` may raise ``ConfigError``. The constructor reads the file, and raises
    ``ConfigError``."""

    def __init__(self, path: Path, decode: Callable[[bytes, str], T], setting: str) -> None:
        self._path = path
        self._decode = decode
        self._name = f"{setting} = {path}"
        self._stamp = self._look()
        self._value = self._read()

    def value(self) -> T:
        """What the file holds now, or held last."""
        try:
            stamp = self._look()
            if stamp != self._stamp:
                self._stamp = stamp  # before it is read: a bad one is not said each time
                self._value = self._read()
                log.info("file read again", file=self._name)
        except ConfigError as error:
            log.error("a changed file is not used; what it held before counts", why=str(error))
        return self._value

    def _look(self) -> Stamp | None:
        try:
            about = self._path.stat()
        except OSError:
            return None
        return about.st_mtime_ns, about.st_size, about.st_ino

    def _read(self) -> T:
        return self._decode(read_secret(self._path, self._name), self._name)


def read_secret(path: Path, name: str) -> bytes:
    """A file of a setting; ``name`` says which. Raises ``ConfigError``."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read: {error.strerror}") from error
