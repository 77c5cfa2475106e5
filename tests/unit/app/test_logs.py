"""No token gets into a log, whoever logs it."""

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest
import structlog

from kuangchao_operator.app.logs import REDACTED, configure, redact

TOKEN = ".".join(("eyJhbGciOiJFZERTQSJ9", "eyJzdWIiOiJhZ2VudCJ9", "x" * 86))


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stdout", written)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    configure("INFO")
    yield written
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def lines(output: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.getvalue().splitlines()]


def test_a_token_in_a_message_is_taken_out(output: io.StringIO) -> None:
    logging.getLogger("somebody").warning("presented %s to the gate", TOKEN)
    (line,) = lines(output)
    assert line["event"] == f"presented {REDACTED} to the gate"
    assert line["level"] == "warning"


def test_a_token_in_an_exception_is_taken_out(output: io.StringIO) -> None:
    try:
        raise ValueError(f"bad header: Bearer {TOKEN}")
    except ValueError:
        logging.getLogger("somebody").exception("failed")
    text = output.getvalue()
    assert TOKEN not in text
    assert REDACTED in text


def test_a_token_in_a_field_is_taken_out(output: io.StringIO) -> None:
    structlog.get_logger("somebody").info("minted", value=TOKEN)
    (line,) = lines(output)
    assert line["value"] == REDACTED


def test_names_and_versions_are_left_alone() -> None:
    for text in ("job team-a/digits: pass", "10.0.0.1:8443", "kuangchao.io/v1alpha1", "w-0-1.digits-abc123.team-a.svc"):
        assert redact(text) == text
