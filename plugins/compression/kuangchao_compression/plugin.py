"""The entry point: a codec from what `spec.plugins[].options` says. Refuses what it does not know."""

from collections.abc import Callable, Mapping
from typing import Final

from kuangchao_compression.blocks import Int8Blocks, Rounding
from kuangchao_compression.casts import Bf16, Identity
from kuangchao_compression.feedback import ErrorFeedback
from kuangchao_compression.sparse import TopK
from kuangchao_contracts.errors import InvalidInputError
from kuangchao_worker.plugins import Codec

METHODS: Final = ("identity", "bf16", "int8", "topk")


class Given:
    """The options, read one by one; `done` refuses those that nobody has asked for."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options, self._known = options, set[str]()

    def word(self, name: str, default: str, legal: tuple[str, ...]) -> str:
        """One of some words."""
        self._known.add(name)
        value = self._options.get(name, default)
        if value not in legal:
            raise _refused(name, value, f"is none of {', '.join(legal)}", default)
        return value

    def number(self, name: str, default: str, low: float, high: float) -> float:
        """A number within bounds."""
        self._known.add(name)
        text = self._options.get(name, default)
        try:
            value = float(text)
        except ValueError:
            raise _refused(name, text, "is no number", default) from None
        if not low <= value <= high:
            raise _refused(name, text, f"is not within {low:g} to {high:g}", default)
        return value

    def done(self) -> None:
        """Raise InvalidInputError for the first unknown name."""
        for name in sorted(set(self._options) - self._known):
            raise _refused(name, self._options[name], f"is unknown here; known: {', '.join(sorted(self._known))}")


def _refused(name: str, value: object, why: str, nearest: object = None) -> InvalidInputError:
    return InvalidInputError(f"plugins[compression].options.{name}", value, why, nearest)


def compression(options: Mapping[str, str]) -> Codec:
    """The codec of `method`. Raises InvalidInputError naming an option that is unknown or out of bounds."""
    given = Given(options)
    make: Callable[[Given], Codec] = {"identity": _identity, "bf16": _bf16, "int8": _int8, "topk": _topk}[
        given.word("method", "int8", METHODS)
    ]
    codec = make(given)
    given.done()
    return codec


def _identity(_: Given) -> Codec:
    return Identity()


def _bf16(_: Given) -> Codec:
    return Bf16()


def _int8(given: Given) -> Codec:
    return _remembering(given, Int8Blocks(_block(given), _rounding(given)))


def _topk(given: Given) -> Codec:
    fraction = given.number("fraction", "0.02", 1e-6, 1.0)
    return _remembering(given, TopK(fraction, Int8Blocks(_block(given), _rounding(given))))


def _block(given: Given) -> int:
    block = given.number("block", "2048", 16, 1 << 20)
    if not block.is_integer():
        raise _refused("block", f"{block:g}", "is no whole number", round(block))
    return int(block)


def _rounding(given: Given) -> Rounding:
    return Rounding(given.word("rounding", Rounding.NEAREST.value, tuple(Rounding)))


def _remembering(given: Given, codec: Codec) -> Codec:
    """With an error memory, unless `errorFeedback` says no."""
    return ErrorFeedback(codec) if given.word("errorFeedback", "true", ("true", "false")) == "true" else codec
