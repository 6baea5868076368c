"""STAGED_WRITE: records and ledgers of staged writes, for clients without a metadata store.

What was expected to be there, or not to be there, or to be unchanged, and is not, is told as the
outcome: the client's next step depends on it. Everything else is refused as any request is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from magnetar.model.errors import (
    BadVersionError,
    MetadataFormatError,
    NodeExistsError,
    NoNodeError,
    NoSuchLedgerError,
    NotAllowedError,
)
from magnetar.model.ledger import LedgerMetadata
from magnetar.protocols.pulsar.session import Session
from magnetar.protocols.pulsar.staged_writes import StagedWrites
from magnetar.wire.bookie.metadata import decode_ledger_metadata, encode_ledger_metadata
from magnetar.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandStagedWrite,
    CommandStagedWriteResponse,
)

Reply: TypeAlias = CommandStagedWriteResponse
Action: TypeAlias = Callable[[StagedWrites, CommandStagedWrite, Reply], Awaitable[None]]

NO_LEDGER: Final = -1
"""The id of a ledger that has none yet."""


async def staged_write(session: Session, command: BaseCommand) -> None:
    request, served = command.staged_write, session.services.staged_writes
    action = ACTIONS.get(request.action)
    if served is None or action is None:
        raise NotAllowedError("this broker does not serve what is asked of staged writes")
    answer = BaseCommand(type=BaseCommand.STAGED_WRITE_RESPONSE)
    reply = answer.staged_write_response
    reply.request_id = request.request_id
    reply.outcome = Reply.DONE
    try:
        await action(served, request, reply)
    except (NoNodeError, NoSuchLedgerError) as error:
        reply.outcome, reply.message = Reply.MISSING, str(error)
    except NodeExistsError as error:
        reply.outcome, reply.message = Reply.EXISTS, str(error)
    except BadVersionError as error:
        reply.outcome, reply.message = Reply.CHANGED, str(error)
    session.send_command(answer)


async def _read_record(served: StagedWrites, request: CommandStagedWrite, reply: Reply) -> None:
    reply.value, reply.version = await served.read_record(request.name)


async def _write_record(served: StagedWrites, request: CommandStagedWrite, reply: Reply) -> None:
    name, value = request.name, request.value
    if request.HasField("version"):
        reply.version = await served.write_record(name, value, request.version)
    else:
        reply.version = await served.create_record(name, value)


async def _await_record(served: StagedWrites, request: CommandStagedWrite, reply: Reply) -> None:
    wait_s = request.wait_ms / 1000
    reply.version = await served.await_record(request.name, request.version, wait_s)


async def _create_ledger(served: StagedWrites, request: CommandStagedWrite, reply: Reply) -> None:
    _fill(reply, *await served.create_ledger(_metadata(NO_LEDGER, request.value)))


async def _read_ledger(served: StagedWrites, request: CommandStagedWrite, reply: Reply) -> None:
    _fill(reply, *await served.read_ledger(request.ledger_id))


def _fill(reply: Reply, metadata: LedgerMetadata, version: int) -> None:
    reply.ledger_id, reply.version = metadata.ledger_id, version
    reply.value = encode_ledger_metadata(metadata)


async def _write_ledger(served: StagedWrites, request: CommandStagedWrite, reply: Reply) -> None:
    metadata = _metadata(request.ledger_id, request.value)
    reply.version = await served.write_ledger(metadata, request.version)


def _metadata(ledger_id: int, value: bytes) -> LedgerMetadata:
    try:
        return decode_ledger_metadata(ledger_id, value)
    except MetadataFormatError as error:
        raise NotAllowedError(str(error)) from error


async def _delete_ledger(served: StagedWrites, request: CommandStagedWrite, _: Reply) -> None:
    await served.delete_ledger(request.ledger_id)


async def _bookies(served: StagedWrites, _: CommandStagedWrite, reply: Reply) -> None:
    for bookie in await served.bookies():
        told = reply.bookies.add(bookie_id=bookie.bookie_id, host=bookie.host, port=bookie.port)
        for key, value in sorted(bookie.properties.items()):
            told.properties.add(key=key, value=value)
        if bookie.refusal is not None:
            told.refusal, told.lacks_space = bookie.refusal, bookie.lacks_space


async def _quorums(served: StagedWrites, request: CommandStagedWrite, reply: Reply) -> None:
    quorums = await served.quorums_for(request.name)
    reply.ensemble_size = quorums.ensemble_size
    reply.write_quorum, reply.ack_quorum = quorums.write_quorum, quorums.ack_quorum


ACTIONS: Final[Mapping[int, Action]] = MappingProxyType(
    {
        CommandStagedWrite.READ_RECORD: _read_record,
        CommandStagedWrite.WRITE_RECORD: _write_record,
        CommandStagedWrite.AWAIT_RECORD: _await_record,
        CommandStagedWrite.CREATE_LEDGER: _create_ledger,
        CommandStagedWrite.READ_LEDGER: _read_ledger,
        CommandStagedWrite.WRITE_LEDGER: _write_ledger,
        CommandStagedWrite.DELETE_LEDGER: _delete_ledger,
        CommandStagedWrite.BOOKIES: _bookies,
        CommandStagedWrite.QUORUMS: _quorums,
    }
)
