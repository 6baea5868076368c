"""What ``spark-submit`` is given: ``spark-submit FILE JOB ARGUMENTS...`` is ``magnetar pipeline JOB
ARGUMENTS...``, with Spark's settings from ``spark-submit``. ``magnetar pipeline script`` says where
this file is."""

from __future__ import annotations

import sys

from magnetar.cli.main import run

if __name__ == "__main__":
    sys.exit(run(["pipeline", *sys.argv[1:]]))
