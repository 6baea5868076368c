"""Ledger metadata, bytes <-> ``LedgerMetadata``: BookKeeper's three formats.

A node starts with the line ``BookieMetadataFormatVersion\\t<version>\\n``, then

* version 3 (ours, BookKeeper >= 4.9): a varint length, ``LedgerMetadataFormat`` in protobuf;
* version 2 (>= 4.2): the same message in protobuf's text form, without the creator token;
* version 1: lines ``write quorum``, ``ensemble size``, ``length``, one line per fragment
  (``first entry TAB bookie TAB ...``), and ``last entry TAB CLOSED`` unless open (-102: in
  recovery). It has neither digest type nor password nor ack quorum.

Metadata is written back in the format it was read in, as BookKeeper does. What a newer writer
added on the top level is kept (``unknown_fields``); below it, or as an unknown state or digest
type, it is refused: rewriting would drop what might matter.

Source: BookKeeper's ``LedgerMetadataSerDe`` and ``DataFormats.proto``; docs/formats/metadata.md.

Why: docs/adr/0033-metadata-in-bookkeepers-bytes.md.
"""

from __future__ import annotations

from google.protobuf import text_format
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from magnetar.model.errors import MetadataFormatError
from magnetar.model.ids import NO_ENTRY, BookieId, LedgerId
from magnetar.model.ledger import DigestType, Fragment, LedgerMetadata, LedgerState
from magnetar.wire.bookie.metadata_pb2 import LedgerMetadataFormat
from magnetar.wire.varint import varint

VERSION_KEY = b"BookieMetadataFormatVersion\t"
_VERSION_DIGITS_MAX = 10
_VARINT32_BYTES_MAX = 5

_V1_CLOSED = "CLOSED"
_V1_IN_RECOVERY = -102

_STATE_FIELD = LedgerMetadataFormat.STATE_FIELD_NUMBER
_DIGEST_FIELD = LedgerMetadataFormat.DIGESTTYPE_FIELD_NUMBER

_INT64_MAX = 2**63 - 1


def encode_ledger_metadata(metadata: LedgerMetadata) -> bytes:
    """The node's bytes, in ``metadata.format_version``."""
    header = VERSION_KEY + b"%d\n" % metadata.format_version
    if metadata.format_version == 3:
        message = _message(metadata)
        message.cToken = metadata.creator_token
        body = message.SerializeToString(deterministic=True) + metadata.unknown_fields
        return header + varint(len(body)) + body
    if metadata.format_version == 2:
        return header + text_format.MessageToString(_message(metadata)).encode()
    assert metadata.format_version == 1, f"no ledger metadata format {metadata.format_version}"
    return header + _encode_v1(metadata)


def decode_ledger_metadata(ledger_id: int, data: bytes) -> LedgerMetadata:
    """The metadata of ledger ``ledger_id`` in a node's bytes. Raises ``MetadataFormatError``."""
    try:
        version, body = _split_header(data)
        if version == 3:
            return _metadata(ledger_id, _parse_v3(body), version)
        if version == 2:
            return _metadata(ledger_id, _parse_v2(body), version)
        if version == 1:
            return _decode_v1(ledger_id, body)
        raise ValueError(
            f"its format version is {version}, known are 1 to 3; a newer BookKeeper wrote it"
        )
    except (ValueError, DecodeError, text_format.ParseError, RecursionError) as error:
        raise MetadataFormatError(
            f"the metadata of ledger {ledger_id} cannot be read: {error}"
        ) from error


# -- values to bytes --------------------------------------------------------------------------


def _message(metadata: LedgerMetadata) -> LedgerMetadataFormat:
    message = LedgerMetadataFormat(
        quorumSize=metadata.write_quorum,
        ensembleSize=metadata.ensemble_size,
        length=metadata.length,
        lastEntryId=metadata.last_entry_id,
        state=LedgerMetadataFormat.State.ValueType(metadata.state.value),
        digestType=LedgerMetadataFormat.DigestType.ValueType(metadata.digest_type.value),
        password=metadata.password,
        ackQuorumSize=metadata.ack_quorum,
    )
    if metadata.ctime_ms:  # 0 stands for "not stored"; BookKeeper stores -1 for "unknown"
        message.ctime = metadata.ctime_ms
    for fragment in metadata.fragments:
        message.segment.add(
            ensembleMember=fragment.bookies,
            firstEntryId=fragment.first_entry_id,
        )
    for key, value in metadata.custom:
        message.customMetadata.add(key=key, value=value)
    return message


def _encode_v1(metadata: LedgerMetadata) -> bytes:
    lines = [str(metadata.write_quorum), str(metadata.ensemble_size), str(metadata.length)]
    lines += [
        "\t".join([str(fragment.first_entry_id), *fragment.bookies])
        for fragment in metadata.fragments
    ]
    if metadata.state is LedgerState.OPEN:
        lines.append("")
    else:
        last = metadata.last_entry_id if metadata.closed else _V1_IN_RECOVERY
        lines.append(f"{last}\t{_V1_CLOSED}")
    return "\n".join(lines).encode()


# -- bytes to values --------------------------------------------------------------------------


def _split_header(data: bytes) -> tuple[int, bytes]:
    if not data.startswith(VERSION_KEY):
        raise ValueError(f"it does not start with {VERSION_KEY!r} but with {data[:28]!r}")
    start = len(VERSION_KEY)
    end = data.find(b"\n", start, start + _VERSION_DIGITS_MAX)
    digits = data[start:end]
    if end < 0 or not digits.isdigit():
        raise ValueError(f"its format version is no number: {data[start : start + 10]!r}")
    return int(digits), data[end + 1 :]


def _parse_v3(body: bytes) -> LedgerMetadataFormat:
    size, start = _read_varint32(body)
    if start + size > len(body):
        raise ValueError(f"it is cut off: {len(body) - start} of {size} bytes are there")
    message = LedgerMetadataFormat()
    message.ParseFromString(body[start : start + size])
    return message


def _read_varint32(body: bytes) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(body[:_VARINT32_BYTES_MAX]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, index + 1
    raise ValueError("its length is cut off or longer than 32 bits")


def _parse_v2(body: bytes) -> LedgerMetadataFormat:
    message = LedgerMetadataFormat()
    text_format.Parse(body.decode("utf-8"), message)
    return message


def _metadata(ledger_id: int, message: LedgerMetadataFormat, version: int) -> LedgerMetadata:
    _check_complete(message)
    closed = message.state == LedgerMetadataFormat.CLOSED
    metadata = LedgerMetadata(
        ledger_id=LedgerId(ledger_id),
        ensemble_size=message.ensembleSize,
        write_quorum=message.quorumSize,
        ack_quorum=(
            message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize
        ),
        digest_type=DigestType(message.digestType),
        password=message.password,
        fragments=tuple(
            Fragment(segment.firstEntryId, tuple(map(BookieId, segment.ensembleMember)))
            for segment in message.segment
        ),
        state=LedgerState(message.state),
        last_entry_id=message.lastEntryId if closed else NO_ENTRY,
        length=message.length if closed else 0,
        ctime_ms=message.ctime,
        creator_token=message.cToken,
        custom=tuple((entry.key, entry.value) for entry in message.customMetadata),
        format_version=version,
        unknown_fields=_take_unknown(message),
    )
    return _checked(metadata)


def _check_complete(message: LedgerMetadataFormat) -> None:
    unknown = _unknown_numbers(message)
    if _STATE_FIELD in unknown or _DIGEST_FIELD in unknown:
        raise ValueError("its state or digest type is of a newer BookKeeper; upgrade to read it")
    if not message.IsInitialized():
        raise ValueError("a quorum, the length, the state or a fragment's first entry is missing")
    nested: list[Message] = [*message.segment, *message.customMetadata]
    for part in nested:
        if _unknown_numbers(part):
            raise ValueError(
                f"a {part.DESCRIPTOR.name} holds fields of a newer BookKeeper; upgrade to read it"
            )
    if message.state == LedgerMetadataFormat.CLOSED and not message.HasField("lastEntryId"):
        raise ValueError("it is closed but has no last entry")


def _unknown_numbers(message: Message) -> list[int]:
    fields = UnknownFieldSet(message)
    return [fields[index].field_number for index in range(len(fields))]


def _take_unknown(message: LedgerMetadataFormat) -> bytes:
    """The bytes of the top-level fields that this version does not know."""
    if not _unknown_numbers(message):
        return b""
    rest = LedgerMetadataFormat()
    rest.CopyFrom(message)
    for field in rest.DESCRIPTOR.fields:
        rest.ClearField(field.name)  # type: ignore[arg-type]  # every name of the descriptor
    return rest.SerializePartialToString()


def _decode_v1(ledger_id: int, body: bytes) -> LedgerMetadata:
    lines = body.decode("utf-8").split("\n")
    if len(lines) < 4:
        raise ValueError(f"it has {len(lines)} lines, at least 4 are needed")
    quorum, ensemble_size, length = (int(line) for line in lines[:3])
    fragments: list[Fragment] = []
    state, last_entry_id = LedgerState.OPEN, NO_ENTRY
    for line in lines[3:]:
        if not line:
            continue
        first, *rest = line.split("\t")
        if rest == [_V1_CLOSED]:
            last_entry_id = int(first)
            state = LedgerState.CLOSED
            break
        fragments.append(Fragment(int(first), tuple(map(BookieId, rest))))
    if state is LedgerState.CLOSED and last_entry_id == _V1_IN_RECOVERY:
        state, last_entry_id = LedgerState.IN_RECOVERY, NO_ENTRY
    metadata = LedgerMetadata(
        ledger_id=LedgerId(ledger_id),
        ensemble_size=ensemble_size,
        write_quorum=quorum,
        ack_quorum=quorum,
        digest_type=DigestType.CRC32,
        password=b"",
        fragments=tuple(fragments),
        state=state,
        last_entry_id=last_entry_id,
        length=length if state is LedgerState.CLOSED else 0,
        format_version=1,
    )
    return _checked(metadata)


def _checked(metadata: LedgerMetadata) -> LedgerMetadata:
    """``metadata``, if its fragments and its end are possible ones."""
    if not metadata.fragments:
        raise ValueError("it has no fragment")
    previous = -1
    for fragment in metadata.fragments:
        first, size = fragment.first_entry_id, len(fragment.bookies)
        if first <= previous:
            raise ValueError(f"fragment {first} does not follow fragment {previous}")
        if size != metadata.ensemble_size:
            raise ValueError(f"fragment {first} has {size} bookies, not {metadata.ensemble_size}")
        if not all(fragment.bookies):
            raise ValueError(f"fragment {first} names a bookie without a name")
        previous = first
    texts: list[object] = [key for key, _ in metadata.custom]
    texts += [bookie for fragment in metadata.fragments for bookie in fragment.bookies]
    if not all(isinstance(text, str) for text in texts):  # protobuf gives bytes for broken text
        raise ValueError("a bookie's name or a key is not UTF-8")
    if not -1 <= metadata.last_entry_id <= _INT64_MAX:
        raise ValueError(f"its last entry is {metadata.last_entry_id}")
    if not 0 <= metadata.length <= _INT64_MAX:
        raise ValueError(f"its length is {metadata.length}")
    return metadata
