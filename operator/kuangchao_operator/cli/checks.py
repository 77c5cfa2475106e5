"""A finding of `kuangchao doctor`."""

from enum import StrEnum

from kuangchao_contracts.base import Contract


class Verdict(StrEnum):
    """ok: fine. warn: works, but not everything. missing: has to be mended. skip: could not be looked at."""

    OK = "ok"
    WARN = "warn"
    MISSING = "missing"
    SKIP = "skip"


class Check(Contract):
    """One thing looked at: what was found and, unless it is fine, the command that mends it."""

    name: str
    verdict: Verdict
    found: str
    mend: str = ""
