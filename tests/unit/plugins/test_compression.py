"""The compression plug-in's codecs: each passes the kit that any codec must pass, and does what its options say."""

from importlib.metadata import EntryPoint
from typing import Any

import pytest
import torch

from kuangchao_compression.plugin import METHODS, compression
from kuangchao_contracts.errors import InvalidInputError
from kuangchao_worker.plugins import Codec, Seat
from kuangchao_worker.plugins.conformance import NAME, CodecConformance
from tests.boundary.modules import ROOT


class _Options(CodecConformance):
    options: dict[str, str] = {}

    def make(self) -> Codec:
        return compression(self.options)


class TestIdentity(_Options):
    options = {"method": "identity"}
    relative_error = 0.0


class TestBf16(_Options):
    options = {"method": "bf16"}
    relative_error = 2**-8


class TestInt8(_Options):
    options = {"method": "int8", "block": "128"}
    relative_error = 0.5 / 127 * 1.001
    keeps_sum = True


class TestInt8WithoutMemory(_Options):
    options = {"method": "int8", "errorFeedback": "false"}
    relative_error = 0.5 / 127 * 1.001


class TestStochastic(_Options):
    options = {"method": "int8", "rounding": "stochastic"}
    relative_error = 1 / 127 * 1.001
    keeps_sum = True


class TestTopK(_Options):
    options = {"method": "topk", "fraction": "0.1"}
    keeps_sum = True


class TestTopKWithoutMemory(_Options):
    options = {"method": "topk", "fraction": "0.1", "errorFeedback": "false"}


@pytest.mark.parametrize(
    ("options", "bytes_per_number"),
    [
        ({"method": "identity"}, 4),
        ({"method": "bf16"}, 2),
        ({"method": "int8", "block": "2048"}, 1 + 4 / 2048),
        ({"method": "topk", "fraction": "0.015625"}, 0.015625 * (4 + 1 + 4 / 2048)),
    ],
)
def test_payload_is_as_small_as_promised(options: dict[str, str], bytes_per_number: float) -> None:
    elements = 1 << 17
    codec = compression(options)
    codec.expect({NAME: elements})
    assert codec.encode(1, NAME, torch.randn(elements)).nbytes == pytest.approx(bytes_per_number * elements, abs=4)


def test_one_large_number_spoils_its_block_only() -> None:
    gradient = torch.ones(4096)
    gradient[0] = 1e6
    codec = compression({"method": "int8", "block": "2048", "errorFeedback": "false"})
    decoded = codec.decode(codec.encode(1, NAME, gradient), 4096)
    assert torch.equal(decoded[2048:], torch.ones(2048))
    assert not decoded[1:2048].any()


def test_stochastic_rounding_is_right_on_average_and_differs_by_rank_step_and_seed() -> None:
    gradient = torch.full((2048,), 0.3)
    gradient[0] = 127.0  # so that one step is 1

    def decoded(step: int = 1, **seat: int) -> torch.Tensor:
        codec = compression({"method": "int8", "rounding": "stochastic", "errorFeedback": "false"})
        codec.seated(Seat(**seat))
        return codec.decode(codec.encode(step, NAME, gradient), 2048)[1:]

    assert decoded().mean() == pytest.approx(0.3, abs=0.05)
    assert torch.equal(decoded(), decoded())
    for other in (decoded(step=2), decoded(rank=1), decoded(seed=1)):
        assert not torch.equal(decoded(), other)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"method": "zip"}, "method"),
        ({"method": "bf16", "block": "64"}, "block"),
        ({"method": "topk", "fraction": "0"}, "fraction"),
        ({"method": "topk", "fraction": "nan"}, "fraction"),
        ({"method": "int8", "block": "many"}, "block"),
        ({"method": "int8", "block": "64.5"}, "block"),
        ({"rounding": "up"}, "rounding"),
        ({"errorFeedback": "yes"}, "errorFeedback"),
        ({"blok": "64"}, "blok"),
    ],
)
def test_options_that_mean_nothing_are_refused_by_name(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"plugins\[compression\].options.{said}="):
        compression(options)


def test_the_package_declares_its_entry_point() -> None:
    import tomllib

    project: dict[str, Any] = tomllib.loads((ROOT / "plugins" / "compression" / "pyproject.toml").read_text())
    entry = project["project"]["entry-points"]["kuangchao.plugins"]["compression"]
    assert EntryPoint("compression", entry, "kuangchao.plugins").load() is compression
    assert {compression({"method": method}).version for method in METHODS} == {"1"}
