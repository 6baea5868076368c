"""An S3 server for tests (moto's), as a process out of an environment of its own.

What it brings along is not what the product runs with, so it is not installed beside it: ``make
tables`` makes ``.venv-s3`` and says with ``MAGNETAR_S3_SERVER`` where the server is."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Final

import httpx
import pyarrow.fs

from magnetar.env.network.free_ports import free_port

SERVER: Final = os.environ.get("MAGNETAR_S3_SERVER", "")
READY_S: Final = 60.0
REGION: Final = "us-east-1"


class S3Server:
    """Running while the ``with`` lasts, with one empty bucket. Any key and secret will do, as
    ``AWS_ACCESS_KEY_ID`` and ``AWS_SECRET_ACCESS_KEY``, which must be set."""

    def __init__(self, bucket: str, log: Path) -> None:
        self._bucket = bucket
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def endpoint(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self.port}"

    def files(self) -> pyarrow.fs.S3FileSystem:
        return pyarrow.fs.S3FileSystem(
            endpoint_override=self.endpoint,
            scheme="http",
            region=REGION,
            allow_bucket_creation=True,
        )

    def __enter__(self) -> S3Server:
        assert SERVER, "MAGNETAR_S3_SERVER does not say where moto_server is: run make tables"
        command = [SERVER, "-H", "127.0.0.1", "-p", str(self.port)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            self._wait_ready(self._process)
            self.files().create_dir(self._bucket)
        except BaseException:
            self._end()
            raise
        return self

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            assert process.poll() is None, f"the S3 server ended; see {self._log}"
            try:
                httpx.get(f"http://{self.endpoint}/moto-api/")
            except httpx.HTTPError:
                time.sleep(0.1)
            else:
                return
        raise TimeoutError(f"the S3 server does not answer; see {self._log}")

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()
