"""Bytes that a process has sent are the kernel's count, whatever else is open."""

import socket
from pathlib import Path

from bench.compression import METHODS, sent_bytes

from kuangchao_compression.plugin import compression


def test_bytes_sent_are_counted_by_the_kernel() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        theirs, _ = server.accept()
        with theirs:
            before = sent_bytes()
            ours.sendall(b"x" * 10_000)
            remaining = 10_000
            while remaining:
                remaining -= len(theirs.recv(remaining))
            assert sent_bytes() - before == 10_000


def test_counting_leaves_nothing_open() -> None:
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    sent_bytes()
    assert len(list(descriptors.iterdir())) == before


def test_every_method_that_is_measured_exists() -> None:
    assert all(compression(options) for options, _ in METHODS.values())
