"""The two commands of the README by the clock: `make demo` and `make test`, each from where no cluster is up.

By name only (`--only commands`), since it takes as long as they do. It starts and stops the embedded cluster, so it
refuses where one is up: nobody shall lose a cluster to a measurement.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

from bench.figures import Figure

ROOT = Path(__file__).resolve().parents[1]
CLUSTER_UP = Path("/run/netns/kc-cp")
CACHE = Path.home() / ".cache" / "kuangchao" / "bin"
LIMIT_SECONDS = 5400

DEMO_SECONDS = {"warm": 4 * 60.0, "cold": 35 * 60.0}
TEST_SECONDS = 30 * 60.0
_TIER = re.compile(r"^(\w+): (\d+) s of (\d+) min$", re.MULTILINE)


class CommandError(RuntimeError):
    """A command could not be measured."""


def measure(*, quick: bool) -> list[Figure]:
    """Seconds of each command and of each tier of tests. `quick` leaves the tests out."""
    if CLUSTER_UP.exists():
        raise CommandError("a cluster is up on this machine; end it first: make down")
    cache = "warm" if CACHE.exists() else "cold"
    demo, _ = _make("demo")
    down, _ = _make("down")
    figures = [
        Figure("commands", f"make demo, {cache}", demo, "s", target=DEMO_SECONDS[cache]),
        Figure("commands", "make down", down, "s"),
    ]
    return figures if quick else [*figures, *_tests()]


def _tests() -> list[Figure]:
    seconds, output = _make("test")
    # the demo before it has filled the cache, whatever was there at first
    whole = Figure("commands", "make test, warm", seconds, "s", target=TEST_SECONDS)
    return [whole, *tiers(output)]


def tiers(output: str) -> list[Figure]:
    """The closing line of each tier as a figure, its budget as the target."""
    return [
        Figure("commands", f"tier {name}", float(used), "s", target=60.0 * int(budget))
        for name, used, budget in _TIER.findall(output)
    ]


def _make(target: str) -> tuple[float, str]:
    started = time.monotonic()
    # `timeout` ends the whole group: what make started does not outlive it
    command = ["timeout", "--kill-after=60", str(LIMIT_SECONDS), "make", target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stdout[-2000:] + done.stderr[-2000:])
        raise CommandError(f"make {target} ended with {done.returncode}")
    return time.monotonic() - started, done.stdout
