"""Entry point of the node agent: settings from the environment, signals, the client's account."""

import asyncio
import os
import signal
import sys
from datetime import UTC, datetime

from kubernetes.aio import client, config

from kuangchao_operator.layers.resource.agent.cluster import KubernetesCluster
from kuangchao_operator.layers.resource.agent.loop import NodeAgent
from kuangchao_operator.layers.resource.survey import default_driver

FIELD_MANAGER = "kuangchao-node-agent"
NODE_VARIABLE = "NODE_NAME"


async def serve(node: str) -> None:
    """Run the agent of a node until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await _load_account()
    async with client.ApiClient() as api:
        api.user_agent = FIELD_MANAGER  # the API server names the writer of a field by it
        await NodeAgent(node, default_driver(), KubernetesCluster(api), lambda: datetime.now(UTC)).run(stop)


async def _load_account() -> None:
    """The pod's own account; outside a cluster the user's kubeconfig."""
    try:
        config.load_incluster_config()  # type: ignore[no-untyped-call]  # the client has no types here
    except config.ConfigException:
        await config.load_kube_config()  # type: ignore[no-untyped-call]


def main() -> int:
    """Exit code 2 without NODE_NAME, else 0 after a signal."""
    node = os.environ.get(NODE_VARIABLE, "")
    if not node:
        sys.stderr.write(f"{NODE_VARIABLE} is not set: it names the node to describe (fieldRef spec.nodeName)\n")
        return 2
    asyncio.run(serve(node))
    return 0


if __name__ == "__main__":
    sys.exit(main())
