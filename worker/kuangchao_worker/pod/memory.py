"""What a failure says of memory: whether there was none left, and which figures its words hold. Pure.

The words are torch's: they come from allocators that this package does not own, so they are read with caution.
"""

import re
from typing import Final, NamedTuple

from kuangchao_contracts.run import OOM_KINDS

_SIGNS: Final = re.compile(
    r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|CUBLAS_STATUS_ALLOC_FAILED|\bout of memory\b",
    re.IGNORECASE,
)
_UNITS: Final = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE: Final = r"([\d.]+) (bytes|[KMGT]iB)"
_REFUSED: Final = re.compile(rf"tried to allocate {_SIZE}", re.IGNORECASE)
_GIVEN: Final = re.compile(rf"{_SIZE} is allocated by PyTorch")
_CAPACITY: Final = re.compile(rf"total capacity of {_SIZE}")


class Figures(NamedTuple):
    """Bytes; None where nothing is known. `peak` counts what was refused as well."""

    peak: int | None = None
    limit: int | None = None


UNKNOWN: Final = Figures()


def ran_out(kind: str, text: str) -> bool:
    """Whether an error of this class and with these words says that there was no memory left.

    Other classes than RuntimeError and its kin (a ValueError about memory, say) are the program's own words.
    """
    name = kind.rsplit(".", 1)[-1]
    allocator = name in ("RuntimeError", "AcceleratorError", "DistBackendError")
    return name in OOM_KINDS or (allocator and _SIGNS.search(text) is not None)


def refused(text: str) -> int:
    """Bytes that an allocator was asked for last; 0 if it does not say."""
    return _size(_REFUSED.search(text)) or 0


def on_device(text: str) -> Figures:
    """What torch's words say of a device that was full."""
    given = _size(_GIVEN.search(text))
    return Figures(given + refused(text) if given is not None else None, _size(_CAPACITY.search(text)))


def _size(found: re.Match[str] | None) -> int | None:
    return round(float(found[1]) * _UNITS[found[2]]) if found is not None else None
