"""A port that a process of tests has chosen is given to no other, bound or not."""

import os
import subprocess
import sys

from tests.ports import free_ports

CHILD = """
import sys
from tests import ports
taken = [int(port) for port in sys.argv[1:]]
ports.random.sample = lambda candidates, count: taken + [port for port in candidates if port not in taken]
print(*ports.free_ports(2))
"""


def test_a_chosen_port_is_given_to_no_other_process() -> None:
    mine = {str(port) for port in free_ports(3)}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run(
        [sys.executable, "-c", CHILD, *mine], capture_output=True, text=True, check=True, timeout=400, env=environment
    )
    theirs = set(found.stdout.split())
    assert len(theirs) == 2
    assert not theirs & mine
