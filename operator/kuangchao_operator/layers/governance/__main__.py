"""Entry point: `python -m kuangchao_operator.layers.governance`."""

import argparse
import asyncio
import logging
import os
import signal
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client import CollectorRegistry

from kuangchao_operator.layers.governance.process import AUDIT_PORT, METRICS_PORT, GovernanceProcess
from kuangchao_operator.layers.governance.upstream import Upstream
from kuangchao_operator.layers.governance.watcher import Watcher


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="kuangchao_operator.layers.governance", description=__doc__)
    parser.add_argument("--gate", default=os.environ.get("KUANGCHAO_GATE_URL"), help="URL of the operator's gate")
    parser.add_argument("--bundle", type=Path, default=Path("/var/run/kuangchao/token/bundle.json"))
    parser.add_argument("--ca", type=Path, default=Path("/var/run/kuangchao/trust/ca.crt"))
    parser.add_argument("--host", default="0.0.0.0", help="address for health and metrics")  # noqa: S104  # pod network
    parser.add_argument("--port", type=int, default=METRICS_PORT, help="port for health and metrics")
    parser.add_argument("--audit-port", type=int, default=AUDIT_PORT, help="port for queries, on loopback only")
    arguments = parser.parse_args()
    if not arguments.gate:
        parser.error("--gate or KUANGCHAO_GATE_URL is required")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(serve(arguments))


async def serve(arguments: argparse.Namespace) -> None:
    """Build the process and serve it."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    upstream = Upstream(arguments.gate, arguments.bundle, arguments.ca)
    registry = CollectorRegistry()
    watcher = Watcher(upstream.query, registry, lambda: datetime.now(UTC))
    process = GovernanceProcess(upstream, watcher, registry)
    await process.serve(arguments.host, arguments.port, arguments.audit_port, stop)


if __name__ == "__main__":
    main()
