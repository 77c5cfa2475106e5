"""How a job names a plug-in. Values only; what a plug-in is asked stands in `ports/plugin.py`."""

from typing import Annotated

from pydantic import Field

from kuangchao_contracts.base import Contract, ShortText

PLUGIN_NAME = "^[a-z][a-z0-9]{0,31}$"
"""It is part of a token's audience."""


class PluginChoice(Contract):
    """A plug-in by the name of its entry point in group `kuangchao.plugins`, and what it is told."""

    name: Annotated[str, Field(pattern=PLUGIN_NAME, max_length=32)]
    options: Annotated[dict[str, ShortText], Field(max_length=32)] = {}
