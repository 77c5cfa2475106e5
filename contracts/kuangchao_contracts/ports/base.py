"""How a port declares its operations, so that gate, tokens, docs and boundary tests all read the same list."""

import inspect
from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, get_type_hints

from kuangchao_contracts.audit import AuditClass
from kuangchao_contracts.base import Contract
from kuangchao_contracts.layers import Layer

F = TypeVar("F", bound=Callable[..., Any])


class Port(ABC):
    """Base of all layer interfaces."""

    layer: ClassVar[Layer]

    @property
    def audience(self) -> str:
        """The `aud` claim of tokens that this implementation accepts."""
        return self.layer.audience


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of a port as the gate sees it.

    kind: second segment of the resource it works on. one_shot: only a one-shot token will do. stale_ok: a token of an
    older attempt is accepted, so that a late worker can learn that it is late. sync: the method is a plain function.
    """

    name: str
    layer: Layer
    method: str
    audit: AuditClass
    one_shot: bool
    kind: str
    stale_ok: bool
    sync: bool
    request: type[Contract]
    response: type[Contract]


def operation(
    *, audit: AuditClass, kind: str = "jobs", one_shot: bool = False, stale_ok: bool = False
) -> Callable[[F], F]:
    """Mark an abstract method `(self, capability, request: Contract) -> Contract` as an operation of its port."""

    def mark(method: F) -> F:
        method.__kuangchao_operation__ = (audit, kind, one_shot, stale_ok)  # type: ignore[attr-defined]  # marker
        return method

    return mark


def operations(port: type[Port]) -> dict[str, Operation]:
    """Operations declared by a port class, by full name `<layer>.<method>`."""
    found = {}
    for name, method in inspect.getmembers(port, inspect.isfunction):
        mark = getattr(method, "__kuangchao_operation__", None)
        if mark is None:
            continue
        audit, kind, one_shot, stale_ok = mark
        hints = get_type_hints(method)
        full = f"{port.layer.value}.{name}"
        found[full] = Operation(
            full,
            port.layer,
            name,
            audit,
            one_shot,
            kind,
            stale_ok,
            not inspect.iscoroutinefunction(method),
            hints["request"],
            hints["return"],
        )
    return found
