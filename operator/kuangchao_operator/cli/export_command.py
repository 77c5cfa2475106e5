"""`kuangchao export`: the weights of a checkpoint in one file, whatever plan wrote it. Offline."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kuangchao_contracts.errors import CheckpointCorruptError, InvalidInputError, UnavailableError
from kuangchao_operator.cli.output import Format, Output, emit_json
from kuangchao_operator.cli.workermodule import last_words, run_module

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
    """What a process of the worker's answers."""
    import json

    done = run_module(EXPORT, [checkpoint, to, *options], TIMEOUT_SECONDS, f"{to} was not written")
    if not done.stdout:
        raise UnavailableError(f"{checkpoint} was not exported: {last_words(done)}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
