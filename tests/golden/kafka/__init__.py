"""What real Kafka clients sent, and were answered, as ``capture.py`` wrote it down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent


class Exchange(NamedTuple):
    """The first request of a client in one version of one API, and its answer: frames without
    their length; the answer is empty where there was none."""

    client: str
    api_key: int
    version: int
    request: bytes
    response: bytes


def exchanges() -> list[Exchange]:
    return [
        Exchange(
            path.stem,
            each["api_key"],
            each["version"],
            bytes.fromhex(each["request"]),
            bytes.fromhex(each["response"]),
        )
        for path in sorted(FOLDER.glob("*.json"))
        for each in json.loads(path.read_text())
    ]
