"""How the devices of a node, and its nodes, reach each other: what a plan's communication is timed on. Pure data.

Never says which devices a job gets: it describes a class of equal nodes.
"""

from typing import Annotated

from pydantic import Field

from kuangchao_contracts.base import MOST_COUNT, Contract

Rate = Annotated[int, Field(ge=1, le=10**15)]
Nanoseconds = Annotated[int, Field(ge=0, le=10**12)]


class Fabric(Contract):
    """Links of a node, in bytes per second in one direction. What is None was not found out: usual values stand in.

    Devices are numbered so that `island` neighbours make an island. An island may be smaller than a node (bridges
    between pairs), the whole node (a switch), or larger (a rack with one switch).
    """

    island: Annotated[int, Field(ge=1, le=MOST_COUNT)] = 1
    """Devices that reach each other without crossing the host's processors; 1: there are no islands."""
    island_bytes_per_second: Rate | None = None
    """Of one device towards its island."""
    host_bytes_per_second: Rate | None = None
    """Of one device towards another island of its node."""
    nics: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Network adapters of a node that carry training traffic."""
    nic_bytes_per_second: Rate | None = None
    """Of one adapter."""
    rail_optimised: bool = True
    """Whether the n-th adapters of all nodes hang on a switch of their own."""
    island_latency_ns: Nanoseconds | None = None
    nic_latency_ns: Nanoseconds | None = None
