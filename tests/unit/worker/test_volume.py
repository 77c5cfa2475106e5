"""The checkpoint volume as the agent handles it: sealed or not there, damage named, other jobs and logs left alone."""

import hashlib
import os
from pathlib import Path

import pytest

from kuangchao_contracts.checkpoint import CheckpointManifest, CheckpointRef
from kuangchao_worker.agent import volume
from kuangchao_worker.pod.shards import ShardsDone, done_name, file_digest, finished_name, working_name
from tests.unit.worker.fakegate import UID, make_launch, make_plan


def shard(working: Path, rank: int, content: bytes) -> ShardsDone:
    working.mkdir(parents=True, exist_ok=True)
    (working / f"rank-{rank}.pt").write_bytes(content)
    done = ShardsDone(rank=rank, files=(file_digest(working, f"rank-{rank}.pt"),), torch_version="2")
    (working / done_name(rank)).write_bytes(done.canonical())
    return done


def sealed(base: Path, step: int = 5) -> CheckpointRef:
    working = base / working_name(step, 1)
    parts = [shard(working, rank, bytes([rank]) * 100) for rank in range(2)]
    content = volume.manifest(make_launch(make_plan(2)), step, 1, parts)
    finished = volume.seal(working, content)
    return CheckpointRef(step=step, attempt=1, path=finished.name, digest=content.content_hash())


def test_sealed_checkpoint_verifies(tmp_path: Path) -> None:
    ref = sealed(tmp_path)
    assert volume.verify(tmp_path, ref) is None
    assert sorted(p.name for p in (tmp_path / ref.path).iterdir()) == ["manifest.json", "rank-0.pt", "rank-1.pt"]
    assert not (tmp_path / working_name(5, 1)).exists()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda d: os.truncate(d / "rank-1.pt", 50), "50 bytes instead of 100"),
        (lambda d: os.truncate(d / "rank-1.pt", 0), "0 bytes instead of 100"),
        (lambda d: (d / "rank-0.pt").unlink(), "rank-0.pt is missing"),
        (lambda d: (d / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda d: (d / "rank-0.pt").write_bytes(b"\1" * 100), "rank-0.pt was changed"),
        (lambda d: (d / "manifest.json").write_text("{}"), "not the committed one"),
        (lambda d: [p.unlink() for p in d.iterdir()] and d.rmdir(), "missing"),
    ],
)
def test_damage_is_found_and_named(tmp_path: Path, damage: object, words: str) -> None:
    ref = sealed(tmp_path)
    damage(tmp_path / ref.path)  # type: ignore[operator]
    assert words in (volume.verify(tmp_path, ref) or "")


def test_unreadable_volume_is_not_taken_for_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = sealed(tmp_path)

    def broken(_: Path) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "read_bytes", broken)
    with pytest.raises(volume.StorageError, match="Input/output error"):
        volume.verify(tmp_path, ref)


def test_incomplete_checkpoint_is_never_sealed(tmp_path: Path) -> None:
    working = tmp_path / working_name(5, 1)
    done = shard(working, 0, b"abc")
    assert "rank 1" in str(volume.read_done(working, 2))
    os.truncate(working / "rank-0.pt", 1)
    with pytest.raises(volume.StorageError, match="has 1 bytes"):
        volume.seal(working, volume.manifest(make_launch(make_plan(1)), 5, 1, [done]))
    assert not (tmp_path / finished_name(5, 1)).exists()


def test_a_pruned_checkpoint_leaves_its_manifest_and_no_log_is_touched(tmp_path: Path) -> None:
    """The audit store has the manifest's digest, and the manifest has the heads of the operation logs."""
    (tmp_path / "oplog").mkdir()
    (tmp_path / "oplog" / "att-1.rank-0.jsonl").write_text("lines\n")
    older, newer = sealed(tmp_path, 5), sealed(tmp_path, 10)
    for ref in (older, newer):
        volume.prune(tmp_path, ref.path)
    volume.sweep(tmp_path, 9)
    kept = tmp_path / "oplog" / "att-1.manifest.json"
    assert hashlib.sha256(kept.read_bytes()).hexdigest() == newer.digest
    assert sorted(p.name for p in tmp_path.iterdir()) == ["oplog"]
    assert (tmp_path / "oplog" / "att-1.rank-0.jsonl").read_text() == "lines\n"


def test_manifest_names_heads_and_what_has_no_file(tmp_path: Path) -> None:
    working = tmp_path / working_name(5, 1)
    heads = {rank: f"{rank + 7}:{str(rank) * 64}" for rank in range(3)}
    parts = [shard(working, rank, b"x").replace(oplog=heads[rank], oplog_kept=rank == 0) for rank in range(3)]
    content = volume.manifest(make_launch(make_plan(3, batch=3), checkpoint_every_steps=20), 5, 1, parts)
    assert content.oplogs == {str(rank): head for rank, head in heads.items()}
    assert (content.oplogs_without_file, content.every_steps) == ("1-2", 20)


def test_a_manifest_of_an_older_release_is_read(tmp_path: Path) -> None:
    """It names no heads; its digest must stay what was committed."""
    ref = sealed(tmp_path)
    path = tmp_path / ref.path / "manifest.json"
    assert b"oplogs" not in path.read_bytes()
    content = CheckpointManifest.model_validate_json(path.read_bytes())
    assert (content.oplogs, content.content_hash()) == (None, ref.digest)


def test_directory_of_another_job_is_left_alone(tmp_path: Path) -> None:
    base = tmp_path / "shared"
    mine = make_launch(make_plan(1), checkpoint_path="shared")
    theirs = mine.replace(job="other", job_uid="another")
    volume.claim(base, mine)
    volume.claim(base, mine)
    with pytest.raises(volume.CheckpointPathInUseError, match=f"'shared'.* job team/job with uid {UID}"):
        volume.claim(base, theirs)
    assert sorted(p.name for p in base.iterdir()) == [".kuangchao-owner"]
    (base / ".kuangchao-owner").write_text(f"{UID}\n")
    volume.claim(base, mine)
