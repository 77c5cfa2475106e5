"""The agent's entry point."""

import os
import subprocess
import sys


def test_without_a_node_name_it_says_so_and_does_not_start() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "NODE_NAME"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    ended = subprocess.run(
        [sys.executable, "-m", "kuangchao_operator.layers.resource.agent"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert "NODE_NAME is not set" in ended.stderr
