"""What `kuangchao plan` may ask for beyond the manifest: axes that no worker runs yet, and another objective."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kuangchao_contracts.plan import PlanRequest


class Aim(StrEnum):
    """Values of --objective; those of the manifest's `parallelism.objective`."""

    TIME = "time"
    DEVICES = "devices"
    MEMORY = "memory"


WhatIf = Annotated[
    bool,
    typer.Option("--what-if", help="Search every axis, also those that the worker of this release does not run yet."),
]
Objective = Annotated[
    Aim | None,
    typer.Option(
        help="What the best plan is: least time for a step, with --what-if also fewest devices that fit, or most memory"
        " left. Default: the manifest's, else time.",
        show_default=False,
    ),
]


def wished(request: PlanRequest, what_if: bool, objective: Aim | None) -> PlanRequest:
    """The request with what the options change of it."""
    from kuangchao_contracts import parallel

    if objective is not None:
        parallelism = request.parallelism.replace(objective=parallel.Objective(objective.value))
        request = request.replace(parallelism=parallelism)
    return request.replace(what_if=True) if what_if else request
