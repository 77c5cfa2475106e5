"""Entry point of the operator process: `python -m kuangchao_operator.app`, configured by KUANGCHAO_* variables."""

import asyncio
import logging
import sys

from pydantic import ValidationError

from kuangchao_contracts.errors import KuangchaoError
from kuangchao_operator.app import logs
from kuangchao_operator.app.process import run
from kuangchao_operator.app.settings import Settings

logger = logging.getLogger("kuangchao_operator.app")


def main() -> int:
    """Exit status: 0 stopped by a signal, 1 a part was lost (Kubernetes starts us anew), 2 wrong settings."""
    try:
        settings = Settings()
    except ValidationError as error:
        for fault in error.errors(include_input=False, include_url=False):
            sys.stderr.write(f"KUANGCHAO_{str(fault['loc'][0]).upper()}: {fault['msg']}\n")
        return 2
    logs.configure(settings.log_level)
    try:
        asyncio.run(run(settings))
    except KuangchaoError as error:
        logger.critical("operator stops: %s: %s", type(error).__name__, error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
