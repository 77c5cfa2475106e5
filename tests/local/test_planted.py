"""Planted faults over real links: each ends in a typed error that names rank, step and what was done.

All ranks do the same, so that none waits for another: what becomes of those that wait is shown by a whole job.
"""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from kuangchao_contracts.errors import KuangchaoError
from kuangchao_contracts.plan import ParallelPlan, Sharding
from kuangchao_worker.layers.execution.agreement import Agreement
from kuangchao_worker.tasks import Task
from kuangchao_worker.tasks.mlp import mlp
from kuangchao_worker.tasks.text import transformer
from tests.local import training
from tests.local.gang import Gang, Seat, built
from tests.local.runs import manifest
from tests.local.test_reconstruction import audit, parts
from tests.local.training import CPU, Job, split

DATA, SHARDED, TENSOR = split(data=2), split(data=2, sharding=Sharding.FULL), split(tensor=2)


def end(seat: Seat, *jobs: Job) -> str:
    """Code and message of the error that ends a rank. The last job is that of all further ranks."""
    try:
        training._train(seat, jobs[min(seat.rank, len(jobs) - 1)])
    except KuangchaoError as error:
        return f"{error.code}: {error}"
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return "trained"


def acting(act: str, plan: ParallelPlan = DATA, model: str = "mlp") -> Job:
    return Job(plan, "tests.local.planted:acting", {"act": act, "model": model}, double=False)


WRITTEN, CALLED = (
    r"ParameterTampered: rank {}, step {}: ",
    r"DirectCommunication: rank {}: tests\.local\.planted called ",
)
ACTS = [
    (acting("write"), WRITTEN + r"parameter 0\.0\.weight was written to"),
    (acting("write", SHARDED), WRITTEN + r"parameter 0\.0\.weight was written to"),
    (acting("write_unseen", TENSOR, "transformer"), WRITTEN + r"what parameter \S+ holds"),
    (acting("collective"), CALLED + r"torch\.distributed\.all_reduce"),
    (acting("new_group", TENSOR, "transformer"), CALLED + r"torch\.distributed\.new_group"),
    (acting("store", SHARDED), CALLED + r"torch\.distributed\._get_default_store"),
    (acting("leave"), CALLED + r"torch\.distributed\.destroy_process_group"),
    (acting("caught", TENSOR, "transformer"), CALLED + r"torch\.distributed\.barrier"),
]


@pytest.mark.parametrize(("job", "words"), ACTS, ids=[f"{job.args['act']} {n}" for n, (job, _) in enumerate(ACTS)])
def test_code_that_reaches_around_a_layer_is_found(gang: Gang, job: Job, words: str) -> None:
    for rank, told in enumerate(gang.run(2, end, job)):
        assert re.match(words.format(rank, 3), told), told


@pytest.mark.parametrize("plan", [DATA, SHARDED], ids=["data", "sharded"])
@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"hidden": "32"}, r"the model of ranks \[1\]"),
        ({"samples": "500"}, r"the length of the dataset of ranks \[1\]"),
        ({"frozen": "1"}, r"the choice of frozen parameters of ranks \[1\]"),
        ({"decay": "0.5"}, r"the optimizer with hyperparameters of ranks \[1\]"),
    ],
    ids=["model", "data", "frozen", "optimizer"],
)
def test_ranks_with_another_model_or_other_data(
    gang: Gang, plan: ParallelPlan, args: dict[str, str], words: str
) -> None:
    name = f"{__name__}:perhaps_frozen"
    ends = gang.run(2, end, *(Job(plan, name, {"dropout": "0", **own}, double=False) for own in ({}, args)))
    assert all(re.match(f"RanksDiffer: {words} is not that of rank 0", text) for text in ends), ends


def perhaps_frozen(args: dict[str, str]) -> Task:
    """The mlp, whose parameters are trained unless `frozen` is given, with a weight decay of `decay`."""
    frozen, decay = args.pop("frozen", ""), float(args.pop("decay", "0"))
    made = mlp(args)
    return replace(
        made,
        model=lambda: made.model().requires_grad_(not frozen),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, weight_decay=decay),
    )


def with_adafactor(args: dict[str, str]) -> Task:
    return replace(mlp(args), optimizer=torch.optim.Adafactor)


def test_an_optimizer_that_torch_cannot_step_in_pieces(gang: Gang) -> None:
    words = r"\w+: task\.optimizer='Adafactor': cannot update parameters that ranks have pieces of: .*: AdamW$"
    ends = gang.run(2, end, Job(SHARDED, f"{__name__}:with_adafactor", {"dropout": "0"}, double=False))
    assert all(re.match(words, text) for text in ends), ends


@pytest.mark.parametrize("plan", [TENSOR, SHARDED], ids=["tensor", "sharded"])
def test_ranks_that_begin_with_other_weights(gang: Gang, plan: ParallelPlan) -> None:
    words = {
        "kuangchao_worker.tasks.text:transformer": r"random generator after the first weights of ranks \[1\]",
        f"{__name__}:looked_at": "first weights of embedding.weight are not the same on all ranks",
    }
    for name, told in words.items():
        ends = gang.run(2, end, *(Job(plan, name, seed=seed) for seed in (3, 4)))
        assert all(re.match(f"RanksDiffer: the {told}", text) for text in ends), ends


def looked_at(args: dict[str, str]) -> Task:
    """A task whose model cannot be made in shares."""
    made = transformer(args)

    def model() -> nn.Module:
        module = made.model()
        assert next(module.parameters()).norm().item() > 0
        return module

    return replace(made, model=model)


def without_style(args: dict[str, str]) -> Task:
    """A task whose rules forget a norm, which works on a part of the tokens under sequence parallelism."""
    made = transformer(args)
    kept = {name: style for name, style in made.rules.tensor.items() if name != "blocks.*.ffn_norm"}
    return replace(made, rules=made.rules.replace(tensor=kept))


def test_a_norm_that_the_rules_forget_is_found_before_the_first_update(gang: Gang) -> None:
    name = f"{__name__}:without_style"
    words = r"\w+: task\.rules\.tensor='blocks\.0\.ffn_norm\.weight': has other gradients"
    ends = gang.run(2, end, Job(split(tensor=2, sequence=True), name, double=False))
    assert all(re.match(words, text) for text in ends), ends
    assert gang.run(2, end, Job(TENSOR, name, double=False)) == ["trained", "trained"], (
        "where tokens are whole it is right"
    )


def step_apart(seat: Seat, mesh: Any, plan: ParallelPlan) -> str:
    try:
        Agreement(CPU).after_step(0.5, stop=False, save=False, step=7 + (seat.rank == 1))
    except KuangchaoError as error:
        return f"{error.code}: {error}"
    return "agreed"


def test_ranks_at_different_steps(gang: Gang) -> None:
    assert gang.run(2, built, DATA, step_apart) == [
        "RanksDiffer: rank 0 is at step 7, all are at 7.5 on average",
        "RanksDiffer: rank 1 is at step 8, all are at 7.5 on average",
    ]


@pytest.mark.parametrize(
    ("act", "reason", "operation"),
    [("write", "ParameterTampered", "state.submit_gradients"), ("caught", "DirectCommunication", "topology.build")],
)
def test_a_whole_job_ends_with_the_fault_in_words_and_in_the_record(
    start: Any, act: str, reason: str, operation: str
) -> None:
    """One rank does it; the other waits for it in a collective and ends as well."""
    run = start(
        manifest("planted", task="tests.local.planted:acting", taskArgs={"act": act, "rank": "1"}, checkpoint=None)
    )
    assert run.end() == 1, run.explain()
    result = run.result()
    assert (result["phase"], result["reason"], result["failure"]["rank"]) == ("Failed", "UserError", 1)
    assert result["attempts"] == 2, "the same fault twice at the same step is not tried a third time"
    assert "rank 1, step 3: " in result["failure"]["message"]
    denied = [e for e in parts(audit("job", "--run", str(run.directory)), "call") if e["process"] == "rank/1"]
    assert {(e["operation"], e["result"], e["reason"]) for e in denied} == {(operation, "deny", reason)}
    run.assert_nothing_left()
