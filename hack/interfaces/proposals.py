"""Which proposals allow which breaks: accepted, naming the path, with a compatibility layer that can be imported."""

import importlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SETTLED: Final = frozenset({"accepted", "implemented"})
_LINE = re.compile(r"^(Status|Breaks|Compatibility): *(\S.*?) *$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Proposal:
    """The front lines of a proposal, those before its first heading of the second level."""

    name: str
    status: str
    breaks: tuple[str, ...]
    compatibility: tuple[str, ...]

    def covers(self, path: str) -> bool:
        """Whether it names this path, or something that the path is in."""
        return any(path == named or path.startswith((f"{named}.", f"{named}[", f"{named}{{")) for named in self.breaks)

    def fault(self) -> str | None:
        """Why it allows nothing; None when it does."""
        if self.status not in SETTLED:
            return f"{self.name} has Status: {self.status or '(none)'}, not accepted or implemented"
        if not self.compatibility:
            return f"{self.name} has no line Compatibility: <module>:<function>"
        missing = [target for target in self.compatibility if not _exists(target)]
        return f"{self.name}: {missing[0]} is not a function that can be imported" if missing else None


def read(directory: Path) -> list[Proposal]:
    """All numbered proposals; 0000 is the template."""
    files = sorted(directory.glob("[0-9][0-9][0-9][0-9]-*.md"))
    return [parse(path.name, path.read_text()) for path in files if not path.name.startswith("0000-")]


def parse(name: str, content: str) -> Proposal:
    """A proposal from its text."""
    lines = _LINE.findall(content.split("\n## ", 1)[0])
    values = {
        key: tuple(value for found, value in lines if found == key) for key in ("Status", "Breaks", "Compatibility")
    }
    return Proposal(name, values["Status"][0] if values["Status"] else "", values["Breaks"], values["Compatibility"])


def objection(path: str, proposals: list[Proposal]) -> str | None:
    """Why a break at this path is not allowed; None when a proposal allows it."""
    naming = [proposal for proposal in proposals if proposal.covers(path)]
    faults = [proposal.fault() for proposal in naming]
    if not naming:
        return f"no proposal says `Breaks: {path}`"
    return None if None in faults else "; ".join(filter(None, faults))


def _exists(target: str) -> bool:
    module, _, function = target.partition(":")
    try:
        return callable(getattr(importlib.import_module(module), function))
    except (ImportError, AttributeError, ValueError):
        return False
