"""Entry point of the issuer process: `python -m kuangchao_operator.signing --dir D --socket S --issuer I`."""

import argparse
import asyncio
import logging
import signal
import sys
import time
from pathlib import Path

from kuangchao_contracts.errors import KuangchaoError
from kuangchao_operator.signing.ca import CertificateAuthority
from kuangchao_operator.signing.keystore import DAY, KeyStore
from kuangchao_operator.signing.mint import Minter
from kuangchao_operator.signing.policy import PolicyKeeper
from kuangchao_operator.signing.server import IssuerServer
from kuangchao_operator.signing.witness import Witness


def main() -> int:
    """Serve until SIGTERM or SIGINT. Exit status 2: refuses to start."""
    parser = argparse.ArgumentParser(prog="kuangchao_operator.signing", description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="where keys and CA are kept")
    parser.add_argument("--socket", type=Path, required=True, help="unix socket to serve on")
    parser.add_argument("--issuer", required=True, help="iss claim: kuangchao/<cluster>")
    parser.add_argument("--active-seconds", type=int, default=DAY, help="how long a key signs")
    parser.add_argument("--policy", type=Path, help="policy file, followed as it changes; none: the built-in policy")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        asyncio.run(serve(arguments))
    except (KuangchaoError, OSError) as error:
        sys.stderr.write(f"issuer does not start: {error}\n")
        return 2
    return 0


async def serve(arguments: argparse.Namespace) -> None:
    """Build the issuer and serve it."""
    keys = KeyStore(arguments.dir / "keys", time.time, arguments.active_seconds)
    ca = CertificateAuthority(arguments.dir / "ca", arguments.issuer, time.time)
    policies = PolicyKeeper(arguments.dir / "policy", arguments.policy, time.time)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    minter = Minter(keys, arguments.issuer, time.time, policies)
    witness = Witness(arguments.dir / "audit", arguments.issuer, time.time)
    await IssuerServer(keys, ca, minter, policies, witness).serve(arguments.socket, stop)


if __name__ == "__main__":
    sys.exit(main())
