"""The last word of a pod: rank reports as JSON where the kubelet reads them, so exits survive an outage of ours."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kuangchao_contracts.run import RankReport

KUBELET_LIMIT: Final = 4_096
log = logging.getLogger("kuangchao.termination")


def compose(reports: Sequence[RankReport], limit: int = KUBELET_LIMIT) -> bytes:
    """As many reports as fit, failures first; texts are cut before a report is left out."""
    ordered = sorted(reports, key=lambda report: (report.exit_code in (0, None), report.rank))
    for text in (1_024, 256, 64):
        cut = [report.replace(error=report.error[:text] if report.error else None) for report in ordered]
        raw = _encode(cut)
        if len(raw) <= limit:
            return raw
        ordered = cut
    while len(raw := _encode(ordered)) > limit:
        ordered.pop()
    return raw


def _encode(reports: Sequence[RankReport]) -> bytes:
    return json.dumps([report.wire() for report in reports], separators=(",", ":")).encode()


def write(path: Path, reports: Sequence[RankReport]) -> None:
    """Write the log; without the file the pod ends all the same."""
    try:
        path.write_bytes(compose(reports))
    except OSError as error:
        log.warning("termination log: %s", error.strerror)
