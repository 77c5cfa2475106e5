"""JSON logs on standard output, with anything that looks like a token taken out, whoever logs it."""

import logging
import re
import sys
from typing import Any, Final

import structlog

_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{20,}|(?i:bearer\s+)\S+")
REDACTED: Final = "[redacted]"


def redact(text: str) -> str:
    """Text without tokens: three base64url parts, or whatever follows the word Bearer."""
    return _TOKEN.sub(REDACTED, text)


def redacting(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """structlog processor: every text value of an event, also in its exception."""
    return {key: redact(value) if isinstance(value, str) else value for key, value in event.items()}


def configure(level: str) -> None:
    """Send the logs of this process and of all libraries through one JSON formatter."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            redacting,
            structlog.processors.JSONRenderer(),
        ],
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # kopf tells of every event of every object at INFO; its warnings are what matters here
    logging.getLogger("kopf").setLevel(max(logging.getLevelName(level), logging.WARNING))
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
