"""Values of types without a definition, as Pulsar's clients write them.

| type | bytes |
|---|---|
| STRING | UTF-8 |
| BOOLEAN, INT8 ... INT64 | 1; 1, 2, 4, 8, big endian |
| FLOAT, DOUBLE | 4, 8, IEEE 754, big endian |
| DATE, TIME, TIMESTAMP | 8: milliseconds since 1970 |
| INSTANT | 8: seconds since 1970; 4: nanoseconds |
| LOCAL_DATE | 8: days since 1970 |
| LOCAL_TIME | 8: nanoseconds of the day |
| LOCAL_DATE_TIME | 8: days since 1970; 8: nanoseconds of the day |

Pure. Source: Pulsar's Java client, ``org.apache.pulsar.client.impl.schema``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from magnetar.cluster.schemas.avro import AvroType
from magnetar.model.schema import SchemaType
from magnetar.pipeline.columns.protobuf_columns import Bytes, Ints
from magnetar.pipeline.typed.avro_arrow import ArrowValues
from magnetar.pipeline.typed.avro_walk import ByteSpans
from magnetar.pipeline.typed.blocks import Array, Block, spread
from magnetar.pipeline.typed.faults import Faults
from magnetar.pipeline.typed.ragged import as_binary, of_size

MICROS_PER_DAY: Final = 86_400_000_000
MICROS_MAX: Final = 2**63 - 1

Values: TypeAlias = npt.NDArray[Any]

SIZES: Final[Mapping[SchemaType, int]] = MappingProxyType(
    {
        SchemaType.BOOLEAN: 1,
        SchemaType.INT8: 1,
        SchemaType.INT16: 2,
        SchemaType.INT32: 4,
        SchemaType.INT64: 8,
        SchemaType.FLOAT: 4,
        SchemaType.DOUBLE: 8,
        SchemaType.DATE: 8,
        SchemaType.TIME: 8,
        SchemaType.TIMESTAMP: 8,
        SchemaType.INSTANT: 12,
        SchemaType.LOCAL_DATE: 8,
        SchemaType.LOCAL_TIME: 8,
        SchemaType.LOCAL_DATE_TIME: 16,
    }
)
_NUMBERS: Final[Mapping[SchemaType, str]] = MappingProxyType(
    {
        SchemaType.INT8: ">i1",
        SchemaType.INT16: ">i2",
        SchemaType.INT32: ">i4",
        SchemaType.INT64: ">i8",
        SchemaType.FLOAT: ">f4",
        SchemaType.DOUBLE: ">f8",
        SchemaType.TIME: ">i8",
        SchemaType.LOCAL_TIME: ">i8",
    }
)


def decode_plain(kind: SchemaType, block: Block, arrow: pa.DataType) -> Array:
    """The block's values as an array of that type."""
    if kind is SchemaType.STRING:
        text = AvroType("string")
        spans = ByteSpans(block.rows, block.at, block.length)
        return ArrowValues(block.bytes, block.faults).array(text, text, spans, arrow)
    size = SIZES[kind]
    wrong = block.length != size
    if wrong.any():
        block.faults.add(block.rows[wrong], "", f"{kind.name} has {size} bytes")
    at = np.where(wrong, block.bytes.size - 1, block.at)  # zeros
    raw = _raw(block.bytes, at, size)
    if kind is SchemaType.BOOLEAN:
        return pa.array(raw[:, 0] != 0)
    if kind in _NUMBERS:
        native = raw.view(_NUMBERS[kind]).reshape(-1)
        return pa.array(native.astype(native.dtype.newbyteorder("=")), arrow)
    return _TIMES[kind](raw, block.rows, block.faults, arrow)


def encode_plain(kind: SchemaType, array: Array) -> Array:
    """The values of an array as an array of binary, where it is null as well."""
    if kind is SchemaType.STRING:
        wide = pa.types.is_large_string(array.type)
        return array.cast(pa.large_binary() if wide else pa.binary())
    dense = array.drop_null()
    if kind is SchemaType.BOOLEAN:
        parts = [dense.to_numpy(zero_copy_only=False).astype(np.uint8)]
    elif kind in _NUMBERS:
        parts = [dense.to_numpy(zero_copy_only=False).astype(_NUMBERS[kind])]
    elif kind is SchemaType.LOCAL_DATE:
        parts = [dense.view(pa.int32()).to_numpy(zero_copy_only=False).astype(">i8")]
    else:
        micros = dense.view(pa.int64()).to_numpy(zero_copy_only=False)
        if kind is SchemaType.LOCAL_DATE_TIME:
            parts = [micros // MICROS_PER_DAY, micros % MICROS_PER_DAY * 1000]
        else:
            parts = [micros // 1000]
        parts = [part.astype(">i8") for part in parts]
    columns = [part.view(np.uint8).reshape(len(dense), part.itemsize) for part in parts]
    data = np.ascontiguousarray(np.hstack(columns)).reshape(-1)
    rows = as_binary(of_size(data, SIZES[kind]))
    present = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
    return spread(rows, present, len(array))


def _raw(bytes_: Bytes, at: Ints, size: int) -> npt.NDArray[np.uint8]:
    found: npt.NDArray[np.uint8] = bytes_.u8[at[:, None] + np.arange(size)]
    return found


def _big_endian(raw: npt.NDArray[np.uint8], first: int, size: int) -> Ints:
    part = np.ascontiguousarray(raw[:, first : first + size])
    return part.view(f">i{size}").reshape(-1).astype(np.int64)


def _checked(
    values: Ints, unit: int, rest: Ints | int, rows: Ints, faults: Faults, arrow: pa.DataType
) -> Array:
    """Times of that many microseconds each, and a rest."""
    most = MICROS_MAX // unit - 1
    wrong = (values > most) | (values < -most)
    if wrong.any():
        faults.add(rows[wrong], "", "a time that no timestamp in microseconds holds")
        values = np.where(wrong, 0, values)
    return pa.array(values * unit + rest).view(arrow)


def _millis(raw: Any, rows: Ints, faults: Faults, arrow: pa.DataType) -> Array:
    return _checked(_big_endian(raw, 0, 8), 1000, 0, rows, faults, arrow)


def _instant(raw: Any, rows: Ints, faults: Faults, arrow: pa.DataType) -> Array:
    micros = _big_endian(raw, 8, 4) // 1000
    return _checked(_big_endian(raw, 0, 8), 1_000_000, micros, rows, faults, arrow)


def _date(raw: Any, rows: Ints, faults: Faults, arrow: pa.DataType) -> Array:
    days = _big_endian(raw, 0, 8)
    wrong = np.abs(days) >= 2**31
    if wrong.any():
        faults.add(rows[wrong], "", "a day of more than 32 bits")
        days = np.where(wrong, 0, days)
    return pa.array(days.astype(np.int32)).view(arrow)


def _date_time(raw: Any, rows: Ints, faults: Faults, arrow: pa.DataType) -> Array:
    micros = _big_endian(raw, 8, 8) // 1000
    return _checked(_big_endian(raw, 0, 8), MICROS_PER_DAY, micros, rows, faults, arrow)


_TIMES: Final[Mapping[SchemaType, Callable[[Any, Ints, Faults, pa.DataType], Array]]] = (
    MappingProxyType(
        {
            SchemaType.DATE: _millis,
            SchemaType.TIMESTAMP: _millis,
            SchemaType.INSTANT: _instant,
            SchemaType.LOCAL_DATE: _date,
            SchemaType.LOCAL_DATE_TIME: _date_time,
        }
    )
)
