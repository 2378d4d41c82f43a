"""A record with whatever bytes in its headers, written by the protocol itself: clients write names of headers as text only.

Put here what tests of odd records share.
"""

from __future__ import annotations

import socket
import struct

_PRODUCE, _VERSION, _ACKS_OF_ALL = 0, 7, -1


def _zigzag(number: int) -> bytes:
    number, out = (number << 1) ^ (number >> 63), bytearray()
    while True:
        out.append(number & 0x7F | (0x80 if number > 0x7F else 0))
        number >>= 7
        if not number:
            return bytes(out)


def _sized(raw: bytes) -> bytes:
    return _zigzag(len(raw)) + raw


def _batch(value: bytes, headers: list[tuple[bytes, bytes]], time: int) -> bytes:
    """Return a batch of one record (message format 2); its checksum is none, which brokers of librdkafka do not ask for."""
    said = b"".join(_sized(name) + _sized(one) for name, one in headers)
    record = b"\0" + _zigzag(0) + _zigzag(0) + _zigzag(-1) + _sized(value) + _zigzag(len(headers)) + said
    body = struct.pack(">hiqqqhii", 0, 0, time, time, -1, -1, -1, 1) + _sized(record)
    after = struct.pack(">ib", -1, 2) + struct.pack(">I", 0) + body
    return struct.pack(">qi", 0, len(after)) + after


def produce_raw(address: str, topic: str, value: bytes, headers: list[tuple[bytes, bytes]], time: int = 1) -> None:
    """Write a record to partition 0 of a topic, and wait until the broker has it."""
    batch = _batch(value, headers, time)
    name = topic.encode()
    request = struct.pack(">hhih", _PRODUCE, _VERSION, 1, -1) + struct.pack(">hhi", -1, _ACKS_OF_ALL, 5_000)
    request += struct.pack(">ih", 1, len(name)) + name + struct.pack(">iii", 1, 0, len(batch)) + batch
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = connection.makefile("rb")
        (size,) = struct.unpack(">i", answer.read(4))
        told = answer.read(size)
    (code,) = struct.unpack_from(">h", told, 4 + 4 + 2 + len(name) + 4 + 4)
    assert not code, f"the broker answers with error {code}"
