"""Coverage-guided fuzzing of `target.check`: `make fuzz`, or `python -m tests.fuzz DIRECTORY [libFuzzer options]`.

DIRECTORY keeps what was found to reach new code; seeds are written into it first. Needs atheris (extra `fuzz`).
"""

import hashlib
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["kuangchao_contracts", "kuangchao_operator.gate", "jwt", "json"]):
    from tests.fuzz import target


def main() -> None:
    corpus = Path(sys.argv[1])
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in target.seeds():
        (corpus / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
    atheris.Setup(sys.argv, target.check)
    atheris.Fuzz()


main()
