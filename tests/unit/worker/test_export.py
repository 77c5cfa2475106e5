"""The weights of a checkpoint in one file: bit for bit those of the model, by its names, whatever plan wrote them."""

import contextlib
import io
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW
from typer.testing import CliRunner

from kuangchao_contracts.errors import CheckpointCorruptError, InvalidInputError
from kuangchao_contracts.oplogfile import Pinned
from kuangchao_operator.cli.main import app
from kuangchao_worker.agent import volume
from kuangchao_worker.layers.state.entries import Holders, collect
from kuangchao_worker.layers.state.export import export, main
from kuangchao_worker.layers.state.files import ShardWriter
from kuangchao_worker.layers.state.pieces import Piece, whole, within
from kuangchao_worker.layers.state.reshard import payloads
from kuangchao_worker.tasks.mlp import mlp
from tests.unit.worker.fakegate import make_launch, make_plan
from tests.unit.worker.parts import committed, make_state, save, train

RANKS = 2
Cut = Callable[[str, tuple[int, ...], int], Piece | None]


def rows(name: str, shape: tuple[int, ...], rank: int) -> Piece | None:
    return _along(0, shape, rank)


def columns(name: str, shape: tuple[int, ...], rank: int) -> Piece | None:
    return _along(len(shape) - 1, shape, rank)


def stages(name: str, shape: tuple[int, ...], rank: int) -> Piece | None:
    return whole(shape) if rank == int(".2." in name) else None


def _along(dimension: int, shape: tuple[int, ...], rank: int) -> Piece | None:
    """Uneven, as torch divides; what has one element or none is whole on the first rank."""
    if not shape:
        return whole(shape) if rank == 0 else None
    half = -(-shape[dimension] // RANKS)
    ends = min(half * (rank + 1), shape[dimension])
    first = Piece((0,) * len(shape), shape)
    offset, size = list(first.offset), list(first.size)
    offset[dimension], size[dimension] = half * rank, ends - half * rank
    return Piece(tuple(offset), tuple(size)) if ends > half * rank else None


def model() -> nn.Sequential:
    """With buffers, a half-precision weight, and an uneven number of rows."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3), nn.Linear(3, 1).to(torch.bfloat16))


def in_pieces(folder: Path, cut: Cut) -> tuple[Path, dict[str, torch.Tensor]]:
    """A checkpoint as two ranks write it."""
    made = model()
    made[:3](torch.randn(8, 4)).sum().backward()
    optimizer = AdamW(made.parameters())
    optimizer.step()
    files = payloads(collect(made, optimizer, None), Holders(None), 0, 2)
    working = folder / "step-2.att-1.tmp"
    for rank in range(RANKS):
        writer = ShardWriter(rank, lambda _, problem: None)
        writer.submit(working, _of(files, cut, rank), Pinned(0, ""))
        assert writer.wait(30)
    parts = volume.read_done(working, RANKS)
    assert not isinstance(parts, str), parts
    directory = volume.seal(working, volume.manifest(make_launch(make_plan(RANKS)), 2, 1, parts))
    return directory, made.state_dict()


def _of(files: dict[str, Any], cut: Cut, rank: int) -> dict[str, Any]:
    shard, layout = files["shard-0.pt"], files["layout-0.pt"]
    tensors, entries = {}, {}
    for name, entry in layout["entries"].items():
        piece = cut(name, entry["shape"], rank)
        if piece is not None:
            tensors[name] = shard["tensors"][name][within(whole(entry["shape"]), piece)].clone()
            entries[name] = {"shape": entry["shape"], "offset": piece.offset, "size": piece.size}
    return {
        f"shard-{rank}.pt": {"step": 2, "tensors": tensors, "values": shard["values"]},
        f"layout-{rank}.pt": {"step": 2, "entries": entries},
    }


@pytest.mark.parametrize("cut", [rows, columns, stages])
def test_pieces_are_joined_bit_for_bit(tmp_path: Path, cut: Cut) -> None:
    directory, expected = in_pieces(tmp_path, cut)
    said = export(directory, tmp_path / "w.pt")
    found = torch.load(tmp_path / "w.pt", weights_only=True)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) and found[name].dtype == value.dtype for name, value in expected.items())
    model().load_state_dict(found)
    assert (said["step"], said["tensors"]) == (2, len(expected))


def test_a_whole_checkpoint_gives_the_same_without_its_optimizer(tmp_path: Path) -> None:
    state, task = make_state(mlp({}), tmp_path), mlp({})
    train(state, task, 1, 2)
    save(state, tmp_path, 2)
    directory = tmp_path / committed(tmp_path, 2).path
    export(directory, tmp_path / "w.pt")
    found, expected = torch.load(tmp_path / "w.pt", weights_only=True), state._store.parameters()  # type: ignore[attr-defined]
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert (tmp_path / "w.pt").stat().st_size < (directory / "shared.pt").stat().st_size / 2
    assert not list(tmp_path.glob(".w.pt*")), "nothing is left beside it"


@pytest.mark.parametrize("name", ["shard-1.pt", "layout-0.pt", "manifest.json"])
def test_what_was_changed_is_not_exported(tmp_path: Path, name: str) -> None:
    directory, _ = in_pieces(tmp_path, rows)
    raw = bytearray((directory / name).read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    (directory / name).write_bytes(raw)
    with pytest.raises(CheckpointCorruptError):
        export(directory, tmp_path / "w.pt")
    assert not list(tmp_path.glob("*w.pt*"))


@pytest.mark.parametrize("lost", ["layout-1.pt", "shard-1.pt"])
def test_a_stage_that_is_missing_is_named(tmp_path: Path, lost: str) -> None:
    """What no layout names would else be missing in silence: there is no model to compare with."""
    directory, _ = in_pieces(tmp_path, stages)
    manifest = json.loads((directory / "manifest.json").read_text())
    manifest["files"] = [file for file in manifest["files"] if file["path"] != lost]
    (directory / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointCorruptError, match=rf"step-2\.att-1 has no {lost}"):
        export(directory, tmp_path / "w.pt")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "holds no manifest.json"),
        ("gone", "is no directory"),
        ("step-3.att-1", "holds no manifest.json"),
        ("step-2.att-1.tmp", "never committed"),
        ("step-2.att-1.bad", "put aside as damaged"),
    ],
)
def test_only_what_is_committed_is_exported(tmp_path: Path, name: str, why: str) -> None:
    directory, _ = in_pieces(tmp_path, rows)
    older = tmp_path / "step-1.att-1"
    shutil.copytree(directory, older)
    (tmp_path / "step-3.att-1").mkdir()
    if name.startswith("step-2"):
        directory = directory.rename(tmp_path / name)
    with pytest.raises(InvalidInputError, match=why) as caught:
        export(tmp_path / name, tmp_path / "w.pt")
    newest = older if name.startswith("step-2") else directory
    assert (caught.value.field, caught.value.nearest) == ("checkpoint", str(newest))


def test_a_file_is_written_where_it_may_be(tmp_path: Path) -> None:
    directory, _ = in_pieces(tmp_path, rows)
    there = tmp_path / "w.pt"
    there.write_text("mine")
    for target, nearest in (
        (there, "--force"),
        (tmp_path, tmp_path / "weights.pt"),
        (tmp_path / "w.safetensors", there),
        (directory / "shared.pt", "shared.pt"),
        (tmp_path / "no" / "w.pt", None),
    ):
        with pytest.raises(InvalidInputError) as caught:
            export(directory, target)
        assert (caught.value.field, caught.value.value, caught.value.nearest) == ("--to", str(target), nearest)
    assert there.read_text() == "mine"
    export(directory, there, force=True)
    assert torch.load(there, weights_only=True)


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, _ = in_pieces(tmp_path, rows)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InvalidInputError, match="No space left"):
        export(directory, tmp_path / "w.pt")
    assert not list(tmp_path.glob("*w.pt*"))


def test_the_command_tells_what_its_process_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, _ = in_pieces(tmp_path, rows)
    to = str(tmp_path / "w.pt")
    done = CliRunner().invoke(app, ["export", str(directory), "--to", to, "-o", "json"])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["file"] == to

    def here(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        """Spares another process."""
        with contextlib.redirect_stdout(io.StringIO()) as said:
            code = main(command[3:])
        return subprocess.CompletedProcess(command, code, said.getvalue(), "")

    monkeypatch.setattr(subprocess, "run", here)
    again = CliRunner().invoke(app, ["export", str(directory), "--to", to])
    assert (again.exit_code, again.stderr) == (
        2,
        f"error: --to={to!r}: is there already; nearest legal value: --force\n",
    )
    (directory / "layout-0.pt").write_bytes(b"")
    torn = CliRunner().invoke(app, ["export", str(directory), "--to", to, "--force"])
    assert (torn.exit_code, torn.stderr) == (1, "error: step-2.att-1/layout-0.pt: does not match its digest\n")
