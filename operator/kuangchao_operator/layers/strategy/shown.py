"""Times, shares and values as short text, alike wherever a plan is told or drawn. Pure."""

from enum import Enum


def duration(microseconds: int) -> str:
    """Time for people with three digits: 940 us, 3.10 ms, 12.4 s."""
    if microseconds < 1_000:
        return f"{microseconds} us"
    unit, size = ("ms", 1_000) if microseconds < 1_000_000 else ("s", 1_000_000)
    places = 2 if microseconds < 10 * size else 1 if microseconds < 100 * size else 0
    scale = 10**places
    whole, rest = divmod((microseconds * scale + size // 2) // size, scale)
    return f"{whole}.{rest:0{places}} {unit}" if places else f"{whole} {unit}"


def permille(part: int, whole: int) -> str:
    """A share in percent with one decimal: "4.1 %"."""
    tenths = (part * 1_000 + whole // 2) // whole if whole else 0
    return f"{tenths // 10}.{tenths % 10} %"


def percent(ppm: int) -> str:
    """Parts per million as a share in percent."""
    return permille(ppm, 1_000_000)


def signed(ppm: int) -> str:
    """The same for what may be less than nothing: "+4.1 %", "-0.1 %"."""
    return f"{'-' if ppm < 0 else '+'}{percent(abs(ppm))}"


def change(before: int, after: int) -> str:
    """By how much something grew or shrank: "+4.1 %", "-0.1 %"."""
    return f"{'-' if after < before else '+'}{permille(abs(after - before), before)}"


def as_written(given: object) -> str:
    """A value of a member of a plan, as a user would write it."""
    if isinstance(given, Enum):
        return str(given.value)
    if isinstance(given, tuple):
        given = list(given)
    return str(given).lower() if isinstance(given, bool) else str(given)
