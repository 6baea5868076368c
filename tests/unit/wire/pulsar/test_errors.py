"""Every error that a client may be told has a code of its own or of what it is a kind of."""

from __future__ import annotations

import inspect

import pytest

from magnetar.model import errors
from magnetar.model.errors import MagnetarError
from magnetar.wire.pulsar.codes import ServerError
from magnetar.wire.pulsar.errors import CODES, server_error

TREE = [
    item
    for item in vars(errors).values()
    if inspect.isclass(item) and issubclass(item, MagnetarError)
]
NEVER_TOLD = (
    MagnetarError,
    errors.ConfigError,
    errors.DataLossError,
    errors.DefectError,
    errors.JobError,
    errors.RestError,
    errors.StagedBacklogError,
    errors.StagedWriteError,
    errors.StaleRunError,
    errors.StartError,
)
"""Errors of commands, pipelines (staged writes too) and starting processes, to which no client is
connected; and faults of this program, which are for its operator."""


@pytest.mark.parametrize("kind", TREE)
def test_what_may_reach_a_client_has_a_code(kind: type[MagnetarError]) -> None:
    found = next(item for item in kind.__mro__ if item in CODES)
    assert (found is MagnetarError) == (kind in NEVER_TOLD)


@pytest.mark.parametrize("kind", TREE)
def test_errors_know_of_no_wire(kind: type[MagnetarError]) -> None:
    own = {name for name in vars(kind) if not name.startswith("__")}
    assert own == set(), "codes stand in wire.pulsar.errors and wire.bookie.status"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.LogFencedError("x"), ServerError.SERVICE_NOT_READY),
        (errors.LogError("x"), ServerError.PERSISTENCE),
        (errors.FencedError("x"), ServerError.PERSISTENCE),
        (errors.NodeExistsError("x"), ServerError.METADATA),
        (errors.MetadataUnavailableError("x"), ServerError.SERVICE_NOT_READY),
        (errors.MetadataFormatError("x"), ServerError.METADATA),
        (errors.ChecksumError("x"), ServerError.CHECKSUM),
        (errors.ConfigError("x"), ServerError.UNKNOWN),
    ],
)
def test_the_most_specific_class_wins(error: MagnetarError, code: ServerError) -> None:
    assert server_error(error) is code
