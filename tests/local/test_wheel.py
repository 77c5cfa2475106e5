"""A user with the wheel and no checkout: the manifest of the README runs as it stands there."""

import re
from pathlib import Path

import yaml

from tests.wheel import build_wheel, unpack

ORIGIN = """
import kuangchao_contracts, kuangchao_operator, kuangchao_worker
from kuangchao_worker.tasks.digits import digits

def probe(args):
    for package in (kuangchao_contracts, kuangchao_operator, kuangchao_worker):
        print("from", package.__file__)
    return digits(args)
"""


def test_the_manifest_of_the_readme_runs_from_the_wheel(start, tmp_path: Path) -> None:
    installed = unpack(build_wheel(tmp_path), tmp_path / "installed")
    readme = next(installed.glob("*.dist-info/METADATA")).read_text("utf-8")
    job = yaml.safe_load(re.findall(r"^```yaml\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)[0])
    assert job["spec"]["task"] == "kuangchao_worker.tasks.digits:digits"
    job["spec"] |= {"task": "origin:probe", "training": job["spec"]["training"] | {"steps": 20}}
    run = start(job, files={"origin.py": ORIGIN}, packages=installed)
    assert run.end() == 0, run.err + run.explain()
    assert run.result()["steps"] == 20
    output = next(run.directory.glob("pods/*/output.log")).read_text()
    assert output.count(f"from {installed}/") == 3, output
    run.assert_nothing_left()
