#!/usr/bin/env python3
"""Forward TCP between network namespaces.

forward.py [NS/]ADDR:PORT=[NS/]ADDR:PORT ...

Left sides listen, right sides are dialled; without NS the namespace the program was started in is meant.
A socket belongs to the namespace its thread is in when the socket is made, so one thread that switches is enough.
"""

import asyncio
import ctypes
import os
import socket
import sys

CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)
HOME = os.open("/proc/self/ns/net", os.O_RDONLY)


def enter(namespace):
    """Move this thread into the namespace behind the file descriptor."""
    if LIBC.setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def make_socket(spec):
    """Return a socket made in the namespace of [NS/]ADDR:PORT, and the address."""
    name, _, rest = spec.rpartition("/")
    host, port = rest.rsplit(":", 1)
    if not name:
        return socket.socket(), (host, int(port))
    namespace = os.open("/run/netns/" + name, os.O_RDONLY)  # each time: it may have been made anew
    try:
        enter(namespace)
        return socket.socket(), (host, int(port))
    finally:
        os.close(namespace)
        enter(HOME)


async def pump(reader, writer):
    """Copy one direction until its end."""
    try:
        while data := await reader.read(1 << 18):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.transport.abort()


async def serve(left, right):
    """Listen on the left side and join each connection to a new one to the right side."""

    async def on_connection(reader, writer):
        try:
            target, address = make_socket(right)
            target.setblocking(False)
            await asyncio.wait_for(asyncio.get_running_loop().sock_connect(target, address), 10)
            back_reader, back_writer = await asyncio.open_connection(sock=target)
        except (OSError, asyncio.TimeoutError):
            writer.transport.abort()  # the client sees a reset, as from a dead server
            return
        await asyncio.gather(pump(reader, back_writer), pump(back_reader, writer))
        writer.close()
        back_writer.close()

    listener, address = make_socket(left)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    server = await asyncio.start_server(on_connection, sock=listener, backlog=512)
    await server.serve_forever()


async def main():
    """Serve every pair given on the command line."""
    await asyncio.gather(*(serve(*pair.split("=")) for pair in sys.argv[1:]))


if __name__ == "__main__":
    asyncio.run(main())
