"""The package's syntax trees, read once for the files of this folder.

They are large: a process that kept them would look through all of them at every collection of
garbage, in every test that comes after.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.tidy.source_tree import Module, modules


@pytest.fixture(scope="package")
def source() -> Sequence[Module]:
    return modules()
