"""The layers and edges of the system: the single home of their names and token audiences."""

from enum import StrEnum


class Layer(StrEnum):
    """A party that can own an operation or act as a subject; numbered layers first, then the edges."""

    RESOURCE = "resource"
    TOPOLOGY = "topology"
    STRATEGY = "strategy"
    EXECUTION = "execution"
    STATE = "state"
    GOVERNANCE = "governance"
    ALGORITHM = "algorithm"
    INTERFACE = "interface"
    PLUGIN = "plugin"
    """What somebody has put between two layers. Each plug-in accepts tokens of its own name only: `plugin_audience`."""

    @property
    def audience(self) -> str:
        """The `aud` claim of tokens that this layer accepts."""
        return f"kc:{self.value}"

    @property
    def subject(self) -> str:
        """The `sub` claim of tokens that this layer holds."""
        return f"layer:{self.value}"

    def accepts(self, audience: str) -> bool:
        """Whether a token for an operation of this layer may be minted for an audience."""
        return audience == self.audience or (self is Layer.PLUGIN and audience.startswith(f"{self.audience}:"))


def plugin_audience(name: str) -> str:
    """The `aud` claim of tokens that one plug-in accepts; it accepts no other, and nobody else accepts these."""
    return f"{Layer.PLUGIN.audience}:{name}"


NUMBERED: tuple[Layer, ...] = (
    Layer.RESOURCE,
    Layer.TOPOLOGY,
    Layer.STRATEGY,
    Layer.EXECUTION,
    Layer.STATE,
    Layer.GOVERNANCE,
)
"""Layers 1 to 6, in order."""
