"""How a session answers, in either version of the protocol. Stateless; a session holds one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from magnetar.model.errors import BadRequestError, MagnetarError
from magnetar.wire.bookie import v2, v3
from magnetar.wire.bookie.messages import (
    AUTH_DISABLED_PLUGIN,
    AddRun,
    Auth,
    BatchRead,
    ForceLedger,
    GetBookieInfo,
    ListEntries,
    Read,
    ReadLac,
    Refused,
    Request,
    WriteLac,
)

Buffer: TypeAlias = bytes | bytearray | memoryview


class Answers(Protocol):
    """Every method gives whole frames, as one buffer or as parts."""

    def adds(self, run: AddRun, entry_ids: Sequence[int], error: MagnetarError | None) -> bytes: ...

    def runs(self, runs: Sequence[AddRun], error: MagnetarError | None) -> bytes:
        """As ``adds`` for all entries of each."""
        ...

    def read(self, request: Read, entry: bytes | None, lac: int | None) -> Sequence[Buffer]: ...

    def auth(self, request: Auth) -> bytes: ...

    def refused(self, request: Refused) -> bytes: ...

    def failed(self, request: Request, error: MagnetarError) -> bytes: ...


class V2Answers:
    def adds(self, run: AddRun, entry_ids: Sequence[int], error: MagnetarError | None) -> bytes:
        return v2.encode_add_answers(run.ledger_id, entry_ids, error)

    def runs(self, runs: Sequence[AddRun], error: MagnetarError | None) -> bytes:
        encode = v2.encode_add_answers
        return b"".join([encode(run.ledger_id, run.entry_ids, error) for run in runs])

    def read(self, request: Read, entry: bytes | None, lac: int | None) -> Sequence[Buffer]:
        assert entry is not None, "version 2 has no long poll"
        head = v2.encode_read_answer(request.ledger_id, request.entry_id, len(entry))
        return (head, entry)

    def auth(self, request: Auth) -> bytes:
        return v2.encode_auth(AUTH_DISABLED_PLUGIN, b"")

    def refused(self, request: Refused) -> bytes:
        return v2.encode_error_answer(
            request.operation, request.ledger_id, request.entry_id, request.error, request.txn_id
        )

    def failed(self, request: Request, error: MagnetarError) -> bytes:
        if isinstance(request, BatchRead):
            return v2.encode_error_answer(
                v2.BATCH_READ, request.ledger_id, request.entry_id, error, request.request_id
            )
        assert isinstance(request, Read), f"version 2 has no {type(request).__name__}"
        return v2.encode_error_answer(v2.READ, request.ledger_id, request.entry_id, error)


class V3Answers:
    def adds(self, run: AddRun, entry_ids: Sequence[int], error: MagnetarError | None) -> bytes:
        txn_ids: Sequence[int] = run.txn_ids
        if entry_ids is not run.entry_ids:
            by_entry = dict(zip(run.entry_ids, run.txn_ids, strict=True))
            txn_ids = [by_entry[entry_id] for entry_id in entry_ids]
        return v3.encode_add_answers(run.ledger_id, entry_ids, txn_ids, error)

    def runs(self, runs: Sequence[AddRun], error: MagnetarError | None) -> bytes:
        return b"".join([self.adds(run, run.entry_ids, error) for run in runs])

    def read(self, request: Read, entry: bytes | None, lac: int | None) -> Sequence[Buffer]:
        entry_id = request.entry_id
        if request.piggyback and entry is not None and request.previous_lac is not None:
            entry_id = request.previous_lac + 1
        return v3.encode_read_answer(request, entry_id, entry, lac)

    def auth(self, request: Auth) -> bytes:
        return v3.encode_auth_answer(request.txn_id, AUTH_DISABLED_PLUGIN, b"")

    def refused(self, request: Refused) -> bytes:
        return v3.encode_error_answer(
            request.operation, request.txn_id, request.ledger_id, request.entry_id, request.error
        )

    def failed(self, request: Request, error: MagnetarError) -> bytes:
        operation, ledger_id, entry_id, txn_id = _name(request)
        return v3.encode_error_answer(operation, txn_id, ledger_id, entry_id, error)


def _name(request: Request) -> tuple[int, int, int, int]:
    """(operation, ledger id, entry id, transaction id) of a version 3 request."""
    match request:
        case Read(txn_id=txn_id, ledger_id=ledger_id, entry_id=entry_id):
            return v3.READ_ENTRY, ledger_id, entry_id, txn_id
        case WriteLac(txn_id=txn_id, ledger_id=ledger_id):
            return v3.WRITE_LAC, ledger_id, -1, txn_id
        case ReadLac(txn_id=txn_id, ledger_id=ledger_id):
            return v3.READ_LAC, ledger_id, -1, txn_id
        case ForceLedger(txn_id=txn_id, ledger_id=ledger_id):
            return v3.FORCE_LEDGER, ledger_id, -1, txn_id
        case ListEntries(txn_id=txn_id, ledger_id=ledger_id):
            return v3.LIST_ENTRIES, ledger_id, -1, txn_id
        case GetBookieInfo(txn_id=txn_id):
            return v3.GET_BOOKIE_INFO, -1, -1, txn_id
        case _:
            raise BadRequestError(f"{type(request).__name__} has no answer in version 3")
