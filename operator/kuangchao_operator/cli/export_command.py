"""`kuangchao export`: the weights of a checkpoint in one file, whatever plan wrote it. Offline."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kuangchao_contracts.errors import CheckpointCorruptError, InvalidInputError, UnavailableError
from kuangchao_operator.cli.output import Format, Output, emit_json

EXPORT = "kuangchao_worker.layers.state.export"
TIMEOUT_SECONDS = 12 * 3600


def export(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="A directory step-<n>.att-<a>.", show_default=False)
    ],
    to: Annotated[str, typer.Option("--to", metavar="FILE", help="Where the weights go.", show_default=False)],
    force: Annotated[bool, typer.Option("--force", help="Write FILE anew if it is there.")] = False,
    output: Output = Format.TEXT,
) -> None:
    """Write the whole model's weights of a checkpoint to one file.

    FILE is a dict of tensors by the model's own names: model.load_state_dict(torch.load(FILE)). Every file of the
    checkpoint that is read is checked as restoring does, and none is changed. This needs the extra [worker], and memory
    for the model once at most.

    JSON: {checkpoint, step, file, tensors, elements, bytes}
    """
    answer = _done(checkpoint, to, ["--force"] if force else [])
    if "field" in answer:
        raise InvalidInputError(answer["field"], answer["value"], answer["why"], answer["nearest"])
    if "corrupt" in answer:
        raise CheckpointCorruptError(answer["corrupt"])
    if output is Format.JSON:
        emit_json(answer)
        return
    print(f"{answer['file']}: {answer['tensors']} tensors, {answer['elements']:,} elements, step {answer['step']}")


def _done(checkpoint: str, to: str, options: list[str]) -> dict[str, Any]:
    """What a process of the worker's answers: torch has no place in this one."""
    import importlib.util
    import json
    import subprocess
    import sys

    if importlib.util.find_spec("torch") is None:
        raise ModuleNotFoundError("needs torch", name="torch")
    try:
        done = subprocess.run(
            [sys.executable, "-m", EXPORT, checkpoint, to, *options],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{to} was not written within {TIMEOUT_SECONDS} s") from None
    if not done.stdout:
        last = done.stderr.strip().rpartition("\n")[2] or f"exit status {done.returncode}"
        raise UnavailableError(f"{checkpoint} was not exported: {last}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
