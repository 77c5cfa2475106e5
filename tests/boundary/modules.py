"""Modules of the three packages, and importing them in a fresh interpreter with some packages out of reach."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOTS = {"kuangchao_contracts": "contracts", "kuangchao_operator": "operator", "kuangchao_worker": "worker"}

OPTIONAL = {f"kuangchao_worker.integrations.{trainer}" for trainer in ("huggingface", "lightning")}
"""Each needs the trainer that it is for; tests/integrations import them."""


def modules(package: str) -> list[str]:
    """Names of all modules of a package that need nothing optional, from the files."""
    base = ROOT / ROOTS[package]
    names = []
    for path in sorted((base / package).rglob("*.py")):
        parts = path.relative_to(base).with_suffix("").parts
        names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return [name for name in names if name not in OPTIONAL]


_PROBE = """
import importlib, json, sys
names, blocked, paths = json.loads(sys.stdin.read())
sys.path[:0] = paths

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Block())
for name in names:
    importlib.import_module(name)
loaded = {n: getattr(m, "__file__", None) for n, m in list(sys.modules.items())}
print(json.dumps({n: f for n, f in loaded.items() if n.split(".")[0].startswith("kuangchao") or "." not in n}))
"""


def load(names: list[str], blocked: set[str], paths: list[Path] | None = None) -> dict[str, str | None]:
    """Import these modules where `blocked` packages do not exist; what is loaded afterwards: module -> file.

    Isolated mode: neither PYTHONPATH nor the working directory counts.
    """
    roots = paths if paths is not None else [ROOT / folder for folder in ROOTS.values()]
    request = json.dumps([names, sorted(blocked), [str(path) for path in roots]])
    command = [sys.executable, "-I", "-W", "ignore", "-c", _PROBE]
    done = subprocess.run(command, input=request, capture_output=True, text=True, timeout=110, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))
