"""Implementations of every port, made from its own declaration. They do nothing but say that they were reached."""

from typing import Any

from kuangchao_contracts.base import Contract
from kuangchao_contracts.ports.base import Operation, Port, operations


class Reached(Exception):  # noqa: N818  # not an error
    """The call got through to the port."""


def recorder(port: type[Port], reached: list[str]) -> Port:
    """An implementation of a port whose every method notes its name and raises Reached."""
    methods = {op.method: _method(op, reached) for op in operations(port).values()}
    implementation = type(f"Recording{port.__name__}", (port,), methods)()
    assert isinstance(implementation, Port)
    return implementation


def _method(op: Operation, reached: list[str]) -> Any:
    def now(*_: object) -> Contract:
        reached.append(op.name)
        raise Reached

    async def later(*_: object) -> Contract:
        return now()

    return now if op.sync else later


def empty(request: type[Contract]) -> Contract:
    """A request of the right type without content: authority must not depend on any."""
    return type(request.__name__, (request,), {"audit_text": lambda _: ""}).model_construct()
