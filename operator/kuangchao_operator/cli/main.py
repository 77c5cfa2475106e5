"""Entry point of `kuangchao` and `kubectl kuangchao`: declares the commands, does nothing else.

Commands import what they need when they run, so that help and bad usage answer at once.
"""

import io
import sys

import typer

from kuangchao_operator.cli import (
    audit_anomalies_command,
    audit_commands,
    audit_job_command,
    audit_proof_commands,
    calibrate_command,
    describe_model_command,
    doctor_command,
    export_command,
    job_commands,
    logs_command,
    plan_command,
    plan_diff_command,
    policy_command,
    run_command,
    token_commands,
    token_verify_command,
)
from kuangchao_operator.cli.output import reporting
from kuangchao_operator.cli.simulate import SimulatingCommand

HELP = """Distributed PyTorch training as layers with enforced authority.

Exit codes: 0 done, 1 failed, 2 bad input, 3 infeasible or denied. Errors go to stderr.
"""

app = typer.Typer(
    name="kuangchao",
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
audit = typer.Typer(help="What the audit store recorded.", no_args_is_help=True, rich_markup_mode=None)
token = typer.Typer(help="Capability tokens: judge one, take them back.", no_args_is_help=True, rich_markup_mode=None)
policy = typer.Typer(help="Who may do what.", no_args_is_help=True, rich_markup_mode=None)

app.command("run")(reporting(run_command.run))
app.command("plan", cls=SimulatingCommand)(reporting(plan_command.plan))
app.command("plan-diff")(reporting(plan_diff_command.plan_diff))
app.command("calibrate")(reporting(calibrate_command.calibrate))
app.command("describe-model")(reporting(describe_model_command.describe_model))
app.command("export")(reporting(export_command.export))
app.command("get")(reporting(job_commands.get))
app.command("describe")(reporting(job_commands.describe))
app.command("logs")(reporting(logs_command.logs))
app.command("why")(reporting(job_commands.why))
app.command("suspend")(reporting(job_commands.suspend))
app.command("resume")(reporting(job_commands.resume))
app.command("delete")(reporting(job_commands.delete))
app.command("doctor")(reporting(doctor_command.doctor))
audit.command("query")(reporting(audit_commands.query))
audit.command("job")(reporting(audit_job_command.job))
audit.command("anomalies")(reporting(audit_anomalies_command.anomalies))
audit.command("verify")(reporting(audit_proof_commands.verify))
audit.command("prove")(reporting(audit_proof_commands.prove))
audit.command("check-proof")(reporting(audit_proof_commands.check_proof))
app.add_typer(audit, name="audit")
token.command("verify")(reporting(token_verify_command.verify))
token.command("revoke")(reporting(token_commands.revoke))
token.command("restore")(reporting(token_commands.restore))
token.command("revocations")(reporting(token_commands.revocations))
app.add_typer(token, name="token")
policy.command("check")(reporting(policy_command.check))
app.add_typer(policy, name="policy")


def main() -> None:
    """Run the command line. What stdout cannot show is written out, as stderr does: names may be of any script."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    app()


if __name__ == "__main__":
    main()
