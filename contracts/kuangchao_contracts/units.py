"""Kubernetes quantities as integers: milli-cores and bytes."""

from decimal import Decimal, InvalidOperation

from kuangchao_contracts.errors import InvalidInputError

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_BINARY: dict[str, Decimal | int] = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL: dict[str, Decimal | int] = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
}


def quantity(text: str | int, field: str = "quantity") -> Decimal:
    """Value of a Kubernetes quantity ("250m", "1.5Gi", 2) as a Decimal.

    Raises InvalidInputError for anything that the API server would refuse too.
    """
    raw = str(text).strip()
    for suffix, factor in (*_BINARY.items(), *_DECIMAL.items()):
        if raw.endswith(suffix):
            number, scale = raw[: -len(suffix)], Decimal(factor)
            break
    else:
        number, scale = raw, Decimal(1)
    try:
        value = Decimal(number) * scale
    except InvalidOperation:
        raise InvalidInputError(field, text, "is not a Kubernetes quantity such as 250m, 2 or 1Gi") from None
    if not value.is_finite():
        raise InvalidInputError(field, text, "must be finite")
    return value


def milli(text: str | int, field: str = "cpu") -> int:
    """Milli-cores of a CPU quantity, rounded up as the scheduler does."""
    return _ceil(quantity(text, field) * 1000)


def to_bytes(text: str | int, field: str = "memory") -> int:
    """Bytes of a memory quantity, rounded up."""
    return _ceil(quantity(text, field))


def _ceil(value: Decimal) -> int:
    whole = int(value)
    return whole + 1 if value > whole else whole


def human_bytes(count: int) -> str:
    """Bytes for people, in binary units with one decimal: 1536 -> "1.5 KiB"."""
    return _decimal(count, 1)


def least_bytes(count: int) -> str:
    """The same rounded up: what is named as enough must be enough."""
    return _tenths(count, -1)


def most_bytes(count: int) -> str:
    """The same rounded down: what is named as there must be there."""
    return _tenths(count, 1)


def hundredths(count: int) -> str:
    """The same with two decimals: beside sums of what has one, which it cannot contradict."""
    return _decimal(count, 2)


def _decimal(count: int, places: int) -> str:
    power = _power(count)
    return f"{count / 1024**power:.{places}f} {_UNITS[power]}" if power else f"{count} B"


def _power(count: int) -> int:
    return next(n for n in range(len(_UNITS)) if abs(count) < 1024 ** (n + 1) or n == len(_UNITS) - 1)


def _tenths(count: int, sign: int) -> str:
    """Rounded down to tenths of a unit for sign 1, up for -1."""
    power = _power(count)
    tenths = sign * (sign * count * 10 // 1024**power)
    return f"{count} B" if power == 0 else f"{tenths // 10}.{tenths % 10} {_UNITS[power]}"
