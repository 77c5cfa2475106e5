"""One module per layer: the abstract interface that other layers see, and nothing else of it.

A layer that acts in two processes has two halves here: `<Layer>Control` in the control plane and `<Layer>Rank` in
the rank process. Signatures carry contracts and the capability only: no object, callable or handle of a layer.
"""

from kuangchao_contracts.ports.base import Operation, Port, operation, operations
from kuangchao_contracts.ports.execution import ExecutionControl, ExecutionRank
from kuangchao_contracts.ports.governance import GovernanceControl
from kuangchao_contracts.ports.interface import InterfaceControl
from kuangchao_contracts.ports.plugin import PluginRank
from kuangchao_contracts.ports.resource import ResourceControl
from kuangchao_contracts.ports.state import StateControl, StateRank
from kuangchao_contracts.ports.strategy import StrategyControl
from kuangchao_contracts.ports.topology import TopologyRank

PORTS: tuple[type[Port], ...] = (
    ResourceControl,
    TopologyRank,
    StrategyControl,
    ExecutionControl,
    ExecutionRank,
    StateControl,
    StateRank,
    GovernanceControl,
    InterfaceControl,
    PluginRank,
)
OPERATIONS: dict[str, Operation] = {name: op for port in PORTS for name, op in operations(port).items()}
"""Every operation of the system by name."""

__all__ = ["OPERATIONS", "PORTS", "Operation", "Port", "operation", "operations", *(p.__name__ for p in PORTS)]
