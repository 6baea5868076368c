"""Each test here runs with either twin."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest

from magnetar.speedups import pure


@pytest.fixture(params=["pure", "native"])
def twins(request: pytest.FixtureRequest) -> Any:
    """All functions, in Python or in C; in C only where it is built, or must be."""
    if request.param == "pure":
        return pure
    try:
        return importlib.import_module("magnetar._speedups")
    except ImportError:
        if os.environ.get("MAGNETAR_SPEEDUPS") == "require":
            raise
        pytest.skip("magnetar._speedups is not built")
