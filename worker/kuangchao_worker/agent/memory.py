"""The pod's memory as its cgroup (version 2) counts it: what it may hold, held at most, and whether it was cut short.

A rank that the kernel has killed says nothing of itself, so this is all that is known of it. Where there are no such
files (another version, no container) nothing is known.
"""

import signal
from pathlib import Path
from typing import Final

from kuangchao_worker.pod.memory import Figures

CGROUPS: Final = Path("/sys/fs/cgroup")
OWN: Final = Path("/proc/self/cgroup")


def own_group(listing: str, root: Path = CGROUPS) -> Path:
    """The folder of the group in /proc/self/cgroup; seen from inside a container it is the root itself."""
    path = next((line[3:] for line in listing.splitlines() if line.startswith("0::")), "/")
    folder = root / path.lstrip("/")
    return folder if (folder / "memory.events").exists() else root


class PodMemory:
    """Memory of the group since this object was made; figures are the share of one of `ranks` equal ones."""

    def __init__(self, group: Path, ranks: int) -> None:
        self._group, self._ranks = group, ranks
        self._kills = self._kill_count()

    @classmethod
    def here(cls, ranks: int) -> "PodMemory":
        """Of the group that this process is in."""
        return cls(own_group(OWN.read_text() if OWN.exists() else ""), ranks)

    @property
    def limit(self) -> int | None:
        """Bytes that each rank may hold; None: no limit."""
        return self._share("memory.max")

    def killed(self, exit_code: int | None) -> Figures | None:
        """Figures of a rank with this exit code, if the kernel has killed for want of memory here; None otherwise.

        The kernel counts before it kills, so who sees the end sees the count.
        """
        if exit_code != -signal.SIGKILL or self._kill_count() == self._kills:
            return None
        # older kernels keep no peak: whoever was killed had reached the limit
        return Figures(self._share("memory.peak") or self.limit, self.limit)

    def _share(self, name: str) -> int | None:
        text = self._read(name).strip()
        return int(text) // self._ranks if text.isdecimal() else None

    def _kill_count(self) -> int:
        lines = (line.split() for line in self._read("memory.events").splitlines())
        return next((int(words[1]) for words in lines if words[:1] == ["oom_kill"] and len(words) == 2), 0)

    def _read(self, name: str) -> str:
        try:
            return (self._group / name).read_text()
        except OSError:
            return ""
