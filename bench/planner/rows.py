"""Rows of a truth file as they stand: named columns, empty cells as None. Judges nothing."""

import csv
import re
from dataclasses import dataclass
from pathlib import Path

# fmt: off
COLUMNS = (
    "id", "source", "model", "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "seq", "experts",
    "topk", "moe_ffn", "gpu", "gpu_mem_gb", "gpus", "tp", "pp", "cp", "ep", "dp", "vp", "sp", "shard", "mbs", "gbs",
    "precision", "recompute", "attn", "peak_mem_gib", "alloc_mem_gib", "tflops_gpu", "mfu_pct", "tok_s_gpu", "step_s",
    "outcome", "kind", "provenance", "notes",
)
# fmt: on


class BadTruthError(ValueError):
    """A file that is no truth file."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the file."""

    cells: dict[str, str]

    def text(self, name: str) -> str:
        """A cell, "" where it is empty."""
        return self.cells.get(name) or ""

    def whole(self, name: str) -> int | None:
        """A cell as a whole number, None where it is empty or no number."""
        try:
            return int(float(self.text(name)))
        except (ValueError, OverflowError):
            return None

    def real(self, name: str) -> float | None:
        """A cell as a number, None where it is empty or no number."""
        try:
            return float(self.text(name))
        except ValueError:
            return None

    def flag(self, name: str) -> int | None:
        """The whole number of `name=number` in the notes."""
        found = re.search(rf"\b{re.escape(name)}=(\d+)", self.notes)
        return int(found.group(1)) if found else None

    @property
    def id(self) -> str:
        """The row's name."""
        return self.text("id")

    @property
    def notes(self) -> str:
        """Free text beside the numbers, in lower case."""
        return self.text("notes").lower()


def read(path: Path) -> list[Row]:
    """All rows. Raises BadTruthError when a column is missing."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise BadTruthError(f"{path}: no column {', '.join(missing)}")
        return [Row(cells={key: value for key, value in line.items() if key}) for line in reader]
