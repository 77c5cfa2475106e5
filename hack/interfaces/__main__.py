"""`python -m hack.interfaces check|release`: interfaces of this code against the newest released snapshot.

Exit status 1 when something breaks that no proposal allows. `release` writes the snapshot of pyproject's version, once:
a release that is out is never written anew.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

from hack.interfaces import proposals, rules, snapshot

ROOT: Final = Path(__file__).resolve().parents[2]
DIRECTORY: Final = Path("docs/interfaces")


def main(arguments: list[str]) -> int:
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(prog="python -m hack.interfaces", description=__doc__)
    parser.add_argument("command", choices=("check", "release"))
    parser.add_argument("--root", type=Path, default=ROOT, help="repository whose documents are read")
    options = parser.parse_args(arguments)
    version = snapshot.version_of((options.root / "pyproject.toml").read_text())
    present, released = snapshot.present(version), snapshot.newest(options.root / DIRECTORY)
    if not judge(released, present, options.root):
        return 1
    return release(present, options.root / DIRECTORY) if options.command == "release" else 0


def judge(released: snapshot.Snapshot | None, present: snapshot.Snapshot, root: Path) -> bool:
    """Print every change; whether all of them are allowed."""
    if released is None:
        print("no release has a snapshot yet")
        return True
    changes = rules.compare(released, present)
    known = proposals.read(root / "docs" / "proposals")
    objections = [(change, proposals.objection(change.path, known)) for change in changes if change.breaking]
    for change in (change for change in changes if not change.breaking):
        print(f"compatible  {change}")
    for change, why in objections:
        print(f"{'allowed' if why is None else 'BREAKS':<11} {change}" + (f" ({why})" if why else ""))
    refused = sum(why is not None for _, why in objections)
    print(f"{len(changes)} changes since {released['version']}, {len(objections)} breaking, {refused} not allowed")
    if refused:
        print("docs/proposals/0000-template.md says how a break is proposed", file=sys.stderr)
    return refused == 0


def release(present: snapshot.Snapshot, directory: Path) -> int:
    """Write the snapshot of a version."""
    path = directory / f"{present['version']}.json"
    wanted = snapshot.text(present)
    if path.exists() and path.read_text() != wanted:
        print(f"{path.name} is released and differs; raise the version in pyproject.toml", file=sys.stderr)
        return 1
    directory.mkdir(parents=True, exist_ok=True)
    path.write_text(wanted)
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
