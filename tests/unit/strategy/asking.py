"""The right to ask strategy for a plan, as the gate hands it on."""

from kuangchao_contracts.capability import Capability
from kuangchao_contracts.tokens import Claims, Grant

CAPABILITY = Capability(
    op="strategy.plan",
    resource="ns/jobs/j",
    opid="o",
    kid="k",
    claims=Claims(
        iss="i",
        sub="s",
        aud="kc:strategy",
        iat=1,
        nbf=1,
        exp=2,
        jti="j" * 22,
        ns="ns",
        job="j",
        juid="u",
        att=1,
        polv=0,
        one=False,
        cap=(Grant(op="strategy.plan", res="ns/jobs/j"),),
    ),
)
