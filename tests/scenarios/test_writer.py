"""The writer of the scenarios itself."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.roles import END_S
from tests.scenarios.cluster import Cluster
from tests.scenarios.weighing import Scales
from tests.scenarios.writer import WriterProcess

pytestmark = pytest.mark.zookeeper


def test_a_writer_that_is_done_stays_to_be_weighed_until_its_input_ends(
    start_cluster: Callable[[int], Cluster], tmp_path: Path
) -> None:
    """One that ended by itself was gone, now and then, before it was weighed."""
    writer = WriterProcess(tmp_path, start_cluster(1).metadata_url, (1, 1, 1))
    try:
        writer.wait_confirmed(100)
        writer.close()
        writer.wait_for("whole")
        with pytest.raises(subprocess.TimeoutExpired):
            writer.process.wait(1)
        assert Scales(writer.process.pid).most_bytes > 0
        assert writer.process.stdin is not None
        writer.process.stdin.close()
        assert writer.process.wait(END_S) == 0
    finally:
        writer.kill()
