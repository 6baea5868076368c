"""Pulsar's own Go client against a standalone: a peer test, not part of ``make test``.

Needs ``go`` and a place to fetch from. Run: ``make interop``. ``MAGNETAR_PEER_DIR`` (in make:
``KEPT``) keeps what was fetched and built.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.standalone import Standalone

HERE = Path(__file__).parent
STEPS = re.findall(r'^\t\t\{"([^"]+)", p\.', (HERE / "main.go").read_text(), re.M)

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1200)]


@pytest.mark.skipif(shutil.which("go") is None, reason="go is not installed")
def test_the_go_client_uses_a_standalone(tmp_path: Path) -> None:
    kept = os.environ.get("MAGNETAR_PEER_DIR")
    work_dir = Path(kept) / "go" if kept else tmp_path / "peer"
    with Standalone(tmp_path / "data") as standalone:
        done = subprocess.run(
            [HERE / "run.sh", work_dir, standalone.service_url],
            capture_output=True,
            text=True,
            timeout=1100,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    said = [line[3:] for line in done.stdout.splitlines() if line[:3] == "ok "]
    assert len(STEPS) >= 8
    assert said[-len(STEPS) :] == STEPS
