"""Finds plug-ins by their entry points. Knows none of them by name, and looks only when a job asks for one."""

from importlib.metadata import EntryPoint, entry_points

from kuangchao_contracts.errors import InvalidInputError, KuangchaoError
from kuangchao_contracts.plugins import PluginChoice
from kuangchao_worker.plugins import ENTRY_POINTS, Codec, Seat
from kuangchao_worker.plugins.service import PluginService


def find(choice: PluginChoice, seat: Seat) -> PluginService:
    """The plug-in that a job names. Raises InvalidInputError if it is not installed, or is not what it should be."""
    try:
        codec = _entry(choice.name).load()(dict(choice.options))
        problem = _problem(codec)
        if problem is None:
            codec.seated(seat)
    except KuangchaoError:
        raise
    except Exception as error:
        # code of others, often written for another version of ours: whatever it raises, the job is told whose it is
        why = f"cannot be made: {type(error).__name__}: {error}"
        raise InvalidInputError("plugins", choice.name, why) from error
    if problem is not None:
        raise InvalidInputError("plugins", choice.name, problem)
    return PluginService(choice, codec)


def _problem(codec: object) -> str | None:
    """Why this is no codec that a job can use."""
    if not isinstance(codec, Codec):
        return f"made {type(codec).__name__}, no Codec"
    version = getattr(codec, "version", None)
    if not isinstance(version, str):
        return f"{type(codec).__name__}.version is {version!r}, no text that ranks could compare"
    return None


def _entry(name: str) -> EntryPoint:
    group = entry_points(group=ENTRY_POINTS)
    found = {entry.value: entry for entry in group if entry.name == name}
    if not found:
        known = ", ".join(sorted({entry.name for entry in group})) or "none"
        raise InvalidInputError("plugins", name, f"is not installed in this image; installed: {known}")
    if len(found) > 1:
        raise InvalidInputError("plugins", name, f"is the name of several in this image: {', '.join(sorted(found))}")
    return next(iter(found.values()))
