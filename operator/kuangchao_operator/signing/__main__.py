"""Entry point of the issuer process: `python -m kuangchao_operator.signing --dir D --socket S --issuer I`."""

import argparse
import asyncio
import logging
import signal
import time
from pathlib import Path

from kuangchao_operator.signing.ca import CertificateAuthority
from kuangchao_operator.signing.keystore import DAY, KeyStore
from kuangchao_operator.signing.mint import Minter
from kuangchao_operator.signing.server import IssuerServer


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="kuangchao_operator.signing", description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="where keys and CA are kept")
    parser.add_argument("--socket", type=Path, required=True, help="unix socket to serve on")
    parser.add_argument("--issuer", required=True, help="iss claim: kuangchao/<cluster>")
    parser.add_argument("--active-seconds", type=int, default=DAY, help="how long a key signs")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(serve(arguments))


async def serve(arguments: argparse.Namespace) -> None:
    """Build the issuer and serve it."""
    keys = KeyStore(arguments.dir / "keys", time.time, arguments.active_seconds)
    ca = CertificateAuthority(arguments.dir / "ca", arguments.issuer, time.time)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await IssuerServer(keys, ca, Minter(keys, arguments.issuer, time.time)).serve(arguments.socket, stop)


if __name__ == "__main__":
    main()
