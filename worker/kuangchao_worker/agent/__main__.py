"""Entry point of a worker pod: `python -m kuangchao_worker.agent`."""

import asyncio
import ctypes
import logging
import os
import sys
from typing import Final

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_worker.agent.loop import run_agent

PR_SET_CHILD_SUBREAPER: Final = 36
BAD_INPUT_EXIT: Final = 2


def main() -> int:
    """Run the agent; its exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    # outside a container orphans of the ranks would go to init; as PID 1 they come to us anyway
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        return asyncio.run(run_agent())
    except InvalidInputError as error:
        logging.getLogger("kuangchao.agent").error("%s", error)  # noqa: TRY400 - the message says it all
        return BAD_INPUT_EXIT


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # threads of torch's store must not hold up the end of the pod
    os._exit(code)
