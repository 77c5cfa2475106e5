"""Closes what an earlier process left open in the trail, before this one serves. Judged by `shell/recovery.py`."""

import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Protocol

from kuangchao_contracts.errors import AuditUnavailableError
from kuangchao_operator.audit.sink import StoreSink
from kuangchao_operator.shell.recovery import JobTruth, result

logger = logging.getLogger(__name__)


class Truth(Protocol):
    """Recorded facts of jobs."""

    def of(self, resource: str, job_uid: str) -> Awaitable[JobTruth | None]:
        """What there is of a job; None when it is gone."""


async def settle(sink: StoreSink, truth: Truth, clock: Callable[[], datetime]) -> None:
    """Give every intent without a result its one result.

    Raises UnavailableError when facts cannot be read: then nothing was written, and it may be tried again. A store that
    fails does not keep the operator from starting: the sink writes results when it can, or the next start finds them.
    """
    open_intents = sink.interrupted
    truths = [await truth.of(intent.resource, intent.job_uid) for intent in open_intents]
    for intent, facts in zip(open_intents, truths, strict=True):
        found = result(intent, facts, clock())
        logger.warning("%s was cut off: %s, %s (operation %s)", found.op, found.reason, found.detail, found.opid)
        try:
            await sink.durable(found)
        except AuditUnavailableError as error:
            logger.warning("no audit record of that yet: %s", error)
