"""Finds plug-ins by their entry points. Knows none of them by name, and looks only when a job asks for one."""

from importlib.metadata import EntryPoint, entry_points

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.plugins import PluginChoice
from kuangchao_worker.plugins import ENTRY_POINTS, Codec, Seat
from kuangchao_worker.plugins.service import PluginService


def find(choice: PluginChoice, seat: Seat) -> PluginService:
    """The plug-in that a job names. Raises InvalidInputError if it is not installed, or is not what it should be."""
    codec = _entry(choice.name).load()(dict(choice.options))
    if not isinstance(codec, Codec):
        raise InvalidInputError("plugins", choice.name, f"made {type(codec).__name__}, no Codec")
    codec.seated(seat)
    return PluginService(choice, codec)


def _entry(name: str) -> EntryPoint:
    installed = {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
    if name not in installed:
        known = ", ".join(sorted(installed)) or "none is"
        raise InvalidInputError("plugins", name, f"is not installed in this image; installed: {known}")
    return installed[name]
