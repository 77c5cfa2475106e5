"""Running out of memory: it is told from other failures, measured, and what the kernel did is told by its counters."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kuangchao_contracts.reasons import Reason
from kuangchao_worker.agent.memory import PodMemory, own_group
from kuangchao_worker.agent.ranks import RankProcess
from kuangchao_worker.agent.views import RankView
from kuangchao_worker.pod.channel import RankMessage
from kuangchao_worker.pod.memory import UNKNOWN, Figures, on_device, ran_out, refused
from kuangchao_worker.rank.__main__ import last_words
from kuangchao_worker.rank.failure import kind_of
from kuangchao_worker.rank.memory import measured

MIB = 2**20
ON_CPU = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate"
    " 209715200 bytes. Error code 12 (Cannot allocate memory)"
)
ON_GPU = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.11 GiB of which 10.62 MiB is"
    " free. Including non-PyTorch memory, this process has 79.09 GiB memory in use. Of the allocated memory 77.50 GiB"
    " is allocated by PyTorch, and 1.02 GiB is reserved by PyTorch but unallocated."
)
"""As torch 2.6 says it."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError(ON_GPU), True),
        (RuntimeError(ON_CPU), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (torch.distributed.DistBackendError("NCCL error: unhandled cuda error\nCuda failure 2 'out of memory'"), True),
        (ValueError("the buffer is out of memory"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (RuntimeError("Connection closed by peer"), False),
    ],
)
def test_want_of_memory_is_told_from_other_failures(error: BaseException, expected: bool) -> None:
    assert ran_out(type(error).__name__, str(error)) is expected
    assert (kind_of(error) == Reason.OUT_OF_MEMORY) is expected


def test_figures_in_words() -> None:
    assert refused(ON_CPU) == 200 * MIB
    assert refused(ON_GPU) == 20 * MIB
    assert on_device(ON_GPU) == Figures(round(77.5 * 2**30) + 20 * MIB, round(79.11 * 2**30))
    assert on_device(ON_CPU) == UNKNOWN
    assert refused("boom") == 0


HUNGRY = """
import json, resource, sys
import torch
from kuangchao_worker.rank.__main__ import last_words
held = [torch.ones(64 << 20, dtype=torch.uint8)]
data = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (data + (32 << 20),) * 2)
for take in (lambda: torch.empty(256 << 20, dtype=torch.uint8), lambda: bytearray(256 << 20)):
    try:
        held.append(take())
    except Exception as error:
        print(last_words(3, 7, error).model_dump_json())
"""


def test_a_rank_that_really_runs_out_says_what_it_held() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", HUNGRY], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    torch_says, python_says = (RankMessage.model_validate_json(line) for line in done.stdout.splitlines())
    for told, asked in ((torch_says, 256 * MIB), (python_says, 0)):
        assert (told.rank, told.step, told.error_kind) == (3, 7, "OutOfMemory")
        assert told.peak_memory_bytes is not None
        process = told.peak_memory_bytes - asked
        assert 64 * MIB < process < 2048 * MIB, "the process with torch, and what torch says was refused on top"


@pytest.mark.parametrize(
    ("error", "figures"),
    [
        (torch.OutOfMemoryError(ON_GPU), Figures(520 * MIB, 1024 * MIB)),
        (RuntimeError("CUDA error: out of memory"), Figures(510 * MIB, 1024 * MIB)),
        (RuntimeError(ON_CPU), UNKNOWN),
        (MemoryError(), UNKNOWN),
    ],
    ids=["refused on top of what is held", "the peak was before", "main memory", "main memory of Python"],
)
def test_on_a_gpu_the_figure_is_that_of_its_allocator_or_none(
    error: BaseException, figures: Figures, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = {"is_initialized": True, "memory_allocated": 500 * MIB, "max_memory_allocated": 510 * MIB}
    for name, value in (held | {"current_device": 0}).items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    properties = SimpleNamespace(total_memory=1024 * MIB)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    assert measured(error) == figures


def test_other_failures_carry_no_figures() -> None:
    told = last_words(0, None, ValueError("x"))
    assert (told.error_kind, told.peak_memory_bytes) == ("ValueError", None)


def group(folder: Path, kills: int, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "memory.events").write_text(f"low 0\nhigh 0\nmax 9\noom {kills}\noom_kill {kills}\noom_group_kill 0\n")
    for name, text in files.items():
        (folder / f"memory.{name}").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("files", "share"),
    [
        ({"peak": "1000\n", "max": "1200\n"}, Figures(500, 600)),
        ({"max": "1200\n"}, Figures(600, 600)),
        ({"peak": "1000\n", "max": "max\n"}, Figures(500, None)),
    ],
    ids=["all", "older kernel", "no limit of its own"],
)
def test_a_kill_for_want_of_memory_is_told_by_the_counters(
    tmp_path: Path, files: dict[str, str], share: Figures
) -> None:
    pod = PodMemory(group(tmp_path / "g", 1, **files), 2)
    assert pod.killed(-9) is None, "the kill was before"
    group(tmp_path / "g", 2)
    assert pod.killed(-9) == share
    assert pod.killed(-11) is None
    assert pod.killed(1) is None


def test_without_counters_a_kill_is_a_kill(tmp_path: Path) -> None:
    assert PodMemory(tmp_path, 1).killed(-9) is None
    assert PodMemory(tmp_path, 1).limit is None


def test_the_own_group_is_found(tmp_path: Path) -> None:
    nested = group(tmp_path / "user.slice", 0)
    assert own_group("12:memory:/x\n0::/user.slice\n", tmp_path) == nested
    assert own_group("0::/\n", nested) == nested
    assert own_group("0::/kubepods/abc\n", nested) == nested, "a container sees its own group as the root"
    assert own_group("4:memory:/x\n", tmp_path) == tmp_path


class Ended:
    """A rank process that has ended."""

    def __init__(self, code: int, raised: str | None = None, tail: str = "", peak: int | None = None) -> None:
        self.rank, self.exit_code, self.peak_bytes = 0, code, peak
        self._said = raised, tail

    def last_words(self) -> tuple[str | None, str]:
        return self._said


def ended(pod: PodMemory, *said: RankMessage, **process: Any) -> RankView:
    view, rank = RankView(0), Ended(**process)
    for message in said:
        view.hear(message)
    view.end(rank, pod)  # type: ignore[arg-type]  # all that a view looks at
    return view


def test_the_report_has_figures_of_whoever_knows_them(tmp_path: Path) -> None:
    pod = PodMemory(group(tmp_path / "g", 0, max="1200\n", peak="1000\n"), 2)
    words = RankMessage(rank=0, step=4, section="train", error="x", error_kind="OutOfMemory", peak_memory_bytes=700)
    own = ended(pod, words, code=1).report(held=False)
    assert (own.error_kind, own.peak_memory_bytes, own.memory_limit_bytes) == ("OutOfMemory", 700, 600)
    assert (own.step, own.section) == (4, "train")
    script = ended(pod, code=1, raised="RuntimeError", tail=ON_CPU, peak=300 * MIB).report(held=False)
    assert (script.error_kind, script.peak_memory_bytes) == ("OutOfMemory", 500 * MIB)
    device = ended(pod, code=1, raised="OutOfMemoryError", tail=ON_GPU, peak=300 * MIB).report(held=False)
    assert (device.peak_memory_bytes, device.memory_limit_bytes) == on_device(ON_GPU)
    group(tmp_path / "g", 1)
    killed = ended(pod, code=-9).report(held=False)
    assert (killed.error_kind, killed.peak_memory_bytes, killed.memory_limit_bytes) == ("OutOfMemory", 500, 600)
    plain = ended(pod, code=1, raised="ValueError", tail="ValueError: x", peak=5).report(held=False)
    assert (plain.error_kind, plain.peak_memory_bytes) == ("ValueError", None)
    assert "peakMemoryBytes" not in plain.wire()


@pytest.mark.parametrize(
    "after", ["", "\rEpoch:  40%|####      | 4/10 [00:00<00:00]\n", "INFO: closing\n", "warning: leaked semaphores\n"]
)
async def test_what_is_printed_after_a_traceback_does_not_hide_it(after: str, tmp_path: Path) -> None:
    """A progress bar that is closed by the interpreter says its last word after the exception's."""
    read, write = os.pipe()
    os.write(write, f"Epoch:  30%|###\r[rank0]: torch.OutOfMemoryError: {ON_GPU}\n{after}".encode())
    os.close(write)
    process = RankProcess(0, os.getpid(), read)
    process.ended(1)
    view = RankView(0)
    view.end(process, PodMemory(tmp_path, 1))
    assert (view.error_kind, view.memory) == (Reason.OUT_OF_MEMORY, on_device(ON_GPU))
