"""Parts of the agent that need no process: settings, environment of ranks, reports, files on the volume, client."""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import psutil
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from kuangchao_contracts.errors import CapabilityError, InvalidInputError, TooMuchSentError, UnavailableError
from kuangchao_contracts.reasons import Reason
from kuangchao_contracts.run import Empty, FeedReply, JoinReply, RankReport, RankState
from kuangchao_contracts.wire import to_reply
from kuangchao_worker.agent import client as gate_client
from kuangchao_worker.agent import termination, volume
from kuangchao_worker.agent.client import GateClient
from kuangchao_worker.agent.environment import places, torchrun_environment
from kuangchao_worker.agent.forge import Forge
from kuangchao_worker.agent.loop import Agent
from kuangchao_worker.agent.monitor import Monitor
from kuangchao_worker.agent.ranks import Ranks
from kuangchao_worker.agent.settings import Oplog, Settings
from kuangchao_worker.agent.views import RankView
from kuangchao_worker.pod import store
from kuangchao_worker.pod.channel import RankChannel, RankMessage
from kuangchao_worker.pod.store import candidate_ports, open_store
from kuangchao_worker.pod.tokens import TokenFile
from tests.unit.worker.fakegate import ROOT, Issuer, make_launch, make_plan

ENVIRONMENT = {
    "KUANGCHAO_GATE_URL": "https://gate.kuangchao:8443/",
    "KUANGCHAO_POD": "pod-0",
    "KUANGCHAO_POD_INDEX": "0",
    "KUANGCHAO_INCARNATION": "2",
}


# ---- settings


def test_settings_have_the_documented_defaults() -> None:
    settings = Settings.from_environment(ENVIRONMENT)
    assert settings.gate_url == "https://gate.kuangchao:8443"
    assert settings.incarnation == 2
    assert settings.token_directory == Path("/var/run/kuangchao/token")
    assert settings.checkpoints == Path("/checkpoints")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KUANGCHAO_GATE_URL", "http://gate.kuangchao:8443"),
        ("KUANGCHAO_GATE_URL", "ftp://127.0.0.1"),
        ("KUANGCHAO_POD_INDEX", "first"),
        ("KUANGCHAO_POD_INDEX", "-1"),
        ("KUANGCHAO_POD", ""),
        ("KUANGCHAO_OPLOG", "sometimes"),
        ("KUANGCHAO_LEASE_GRACE_SECONDS", "an hour"),
    ],
)
def test_settings_refuse(name: str, value: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        Settings.from_environment({**ENVIRONMENT, name: value})
    assert error.value.field == name


def test_operation_logs_and_grace_are_the_operators_to_set() -> None:
    given = {**ENVIRONMENT, "KUANGCHAO_OPLOG": "off", "KUANGCHAO_LEASE_GRACE_SECONDS": "0"}
    settings = Settings.from_environment(given)
    assert (settings.oplog, settings.lease_grace_seconds) == (Oplog.OFF, 0.0)
    settings = Settings.from_environment(ENVIRONMENT)
    assert (settings.oplog, settings.lease_grace_seconds) == (Oplog.VOLUME, 3_600.0)


def test_plain_http_is_for_loopback_only() -> None:
    for host in ("127.0.0.1:8080", "[::1]:8080", "localhost:8080"):
        assert Settings.from_environment({**ENVIRONMENT, "KUANGCHAO_GATE_URL": f"http://{host}"}).gate_url


# ---- ranks and their environment


def environments(world: int, per_pod: int) -> list[dict[str, str]]:
    plan = make_plan(world, per_pod=per_pod, batch=world)
    reply = JoinReply(ready=True, attempt=3, master_host="w-0-0.job", master_port=12_000, store_prefix="p")
    launch = make_launch(plan, None, command=("train.py",))
    return [
        torchrun_environment({"PATH": "/bin"}, place, reply, launch, "/run/m", "/scratch")
        for pod in range(plan.pods)
        for place in places(plan, pod)
    ]


def test_world_size_counts_processes_and_ranks_are_unique() -> None:
    """kubeflow/trainer#1790, kubeflow/pytorch-operator#331."""
    found = environments(8, 4)
    assert {e["WORLD_SIZE"] for e in found} == {"8"}
    assert [e["RANK"] for e in found] == [str(i) for i in range(8)]
    assert [e["LOCAL_RANK"] for e in found] == ["0", "1", "2", "3"] * 2
    assert [e["GROUP_RANK"] for e in found] == ["0"] * 4 + ["1"] * 4
    assert {e["LOCAL_WORLD_SIZE"] for e in found} == {"4"}


def test_rank_is_the_pod_index_not_the_order_of_names() -> None:
    """pytorch/pytorch#137402."""
    found = environments(12, 1)
    assert [e["RANK"] for e in found] == [str(i) for i in range(12)]
    assert {(e["MASTER_ADDR"], e["MASTER_PORT"]) for e in found} == {("w-0-0.job", "12000")}


def test_torchrun_variables_use_the_agents_store_and_say_the_attempt() -> None:
    first = environments(2, 1)[0]
    assert first["TORCHELASTIC_USE_AGENT_STORE"] == "True"
    assert first["TORCHELASTIC_RESTART_COUNT"] == "2"
    assert first["OMP_NUM_THREADS"] == "1"
    assert first["PATH"] == "/bin"


def test_ports_avoid_the_ephemeral_range() -> None:
    drawn = candidate_ports((32_768, 60_999), lambda n: n - 1) + candidate_ports((32_768, 60_999), lambda n: n // 2)
    assert all(10_240 <= port < 32_768 or 60_999 < port <= 65_535 for port in drawn)
    assert candidate_ports((1, 65_535), lambda _: 7), "a kernel that gives away every port still leaves a choice"


def test_a_port_that_is_taken_is_passed_over_and_none_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytorch/pytorch#91940, #126510."""
    with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(store, "candidate_ports", lambda *_: [port, port])
        with pytest.raises(UnavailableError, match="no free port for the store after 2 tries"):
            open_store(1)
        free = candidate_ports(store._ephemeral_range(), secrets.randbelow)
        monkeypatch.setattr(store, "candidate_ports", lambda *_: [port, *free])
        opened = open_store(1)
    assert opened.port != port
    opened.close()


@pytest.mark.parametrize(("given", "expected"), [({}, "timeout:1 attempts:1"), ({"RES_OPTIONS": "ndots:2"}, "ndots:2")])
async def test_a_lame_dns_does_not_stop_the_store_for_long(given: dict[str, str], expected: str) -> None:
    """It asks for the names of its clients, one after the other, and answers none of them meanwhile."""
    seen: list[dict[str, str]] = []

    class Forged:
        async def store(self, attempt: int, environment: dict[str, str]) -> None:
            seen.append(environment)

    agent = Agent(Settings.from_environment(ENVIRONMENT), {"PATH": "/bin", **given})
    await agent._open_store(cast("Forge", Forged()), 1)
    assert seen[0]["RES_OPTIONS"] == expected
    assert seen[0]["PATH"] == "/bin"


# ---- reports


def test_exit_of_a_rank_is_held_back_while_its_checkpoint_is_on_its_way() -> None:
    view = RankView(0, state=RankState.EXITED, step=9, exit_code=0)
    assert view.report(held=True).exit_code is None
    assert view.report(held=True).section == "commit"
    assert view.report(held=False).exit_code == 0
    assert RankView(0, state=RankState.EXITED, exit_code=1).report(held=True).exit_code == 1


def test_a_rank_that_ends_with_0_and_has_said_nothing_of_it_has_failed() -> None:
    """Code of a task may call os._exit(0) in the middle of a step."""
    silent, done, failed = (RankView(0, state=RankState.EXITED, exit_code=code) for code in (0, 0, 1))
    done.hear(RankMessage(rank=0, step=9, oplog_count=12, oplog_head="0" * 64))
    for view in (silent, done, failed):
        view.require_last_word()
    assert (silent.exit_code, silent.error_kind) == (1, "UserError")
    assert (done.exit_code, done.error, failed.exit_code, failed.error) == (0, None, 1, None)


def test_failed_save_is_no_failure_of_the_rank() -> None:
    view = RankView(0)
    view.hear(RankMessage(rank=0, save_failed="/x", error="OSError: disk full"))
    assert view.error is None


def test_termination_log_fits_the_kubelet_and_keeps_failures() -> None:
    reports = [RankReport(rank=r, state=RankState.EXITED, exit_code=0) for r in range(200)]
    reports.append(RankReport(rank=200, state=RankState.EXITED, exit_code=1, error="x" * 1024, error_kind="ValueError"))
    raw = termination.compose(reports)
    assert len(raw) <= 4096
    first = RankReport.model_validate(json.loads(raw)[0])
    assert (first.rank, first.error_kind) == (200, "ValueError")


async def test_monitor_hears_everything_before_an_end_is_judged(tmp_path: Path) -> None:
    heard: list[RankMessage] = []
    monitor = Monitor(tmp_path / "m.sock", heard.append)
    channel = RankChannel(str(tmp_path / "m.sock"), 3)
    channel.progress(1, "train")
    channel.progress(2, "train")
    channel.reliable(RankMessage(rank=3, step=9, metrics={"accuracy": "0.97"}))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(b"{}", str(tmp_path / "m.sock"))
        # the control plane would refuse every heartbeat with such a number
        stranger.sendto(json.dumps({"rank": 0, "step": 2**53 + 1}).encode(), str(tmp_path / "m.sock"))
    monitor.drain()
    monitor.close()
    assert [m.step for m in heard] == [1, 9], "progress is thinned, the last word is not, and noise is dropped"
    assert not (tmp_path / "m.sock").exists()
    channel.reliable(RankMessage(rank=3))  # nobody listens any more; a rank must not fail for that
    channel.close()


async def test_what_a_rank_has_started_ends_with_it(tmp_path: Path) -> None:
    """A worker of a DataLoader, say: it would hold memory and devices that the next attempt needs."""
    ended = asyncio.Event()
    ranks = Ranks(lambda _: ended.set())
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGCHLD, ranks.on_child)
    started = tmp_path / "pid"
    program = f"""
import pathlib, subprocess
child = subprocess.Popen(["sleep", "600"], stderr=subprocess.DEVNULL)
pathlib.Path({str(started)!r}).write_text(str(child.pid))
"""
    ranks.start_cold(0, [sys.executable, "-c", program], dict(os.environ))
    await asyncio.wait_for(ended.wait(), 60)
    loop.remove_signal_handler(signal.SIGCHLD)
    with contextlib.suppress(psutil.NoSuchProcess):
        await asyncio.to_thread(psutil.Process(int(started.read_text())).wait, 60)
    await ranks.end()


async def test_a_script_may_save_between_sigterm_and_sigkill_and_no_longer(tmp_path: Path) -> None:
    ready, saved = tmp_path / "ready", tmp_path / "saved"
    saves = f"signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({str(saved)!r}).touch(), os._exit(0)))"
    ignores = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    ended: dict[int, int | None] = {}
    ranks = Ranks(lambda process: ended.update({process.rank: process.exit_code}))
    for rank, handles in enumerate((saves, ignores)):
        program = f"import os, pathlib, signal, time\n{handles}\npathlib.Path({str(ready)!r} + '{rank}').touch()\n"
        ranks.start_cold(rank, [sys.executable, "-c", f"{program}time.sleep(600)"], dict(os.environ))
    async with asyncio.timeout(60):
        while not all((tmp_path / f"ready{rank}").exists() for rank in range(2)):
            await asyncio.sleep(0.01)
    await ranks.end(0.5)
    assert saved.exists()
    assert ended == {0: 0, 1: -signal.SIGKILL}


async def test_a_process_that_is_stopped_is_told_from_one_that_waits() -> None:
    ranks = Ranks(lambda _: None)
    for rank in range(2):
        ranks.start_cold(rank, ["sleep", "600"], dict(os.environ))
    stopped = next(process for process in ranks._running.values() if process.rank == 1)
    stopped.signal(signal.SIGSTOP)
    async with asyncio.timeout(60):
        while ranks.stopped() != {1}:
            await asyncio.sleep(0.01)
    stopped.signal(signal.SIGCONT)
    async with asyncio.timeout(60):
        while ranks.stopped():
            await asyncio.sleep(0.01)
    await ranks.end()
    assert ranks.stopped() == set()


def test_what_an_agent_cannot_prepare_is_told_in_our_own_words() -> None:
    view = RankView(0)
    view.refuse(volume.CheckpointPathInUseError.code, "taken")
    assert view.report(held=False).error_kind == Reason.CHECKPOINT_PATH_IN_USE
    assert volume.StorageError.code == Reason.STORAGE


def test_names_of_metrics_without_end_are_not_kept() -> None:
    view = RankView(0)
    for number in range(100):
        view.hear(RankMessage(rank=0, metrics={f"name{number}": "1", "x" * 65: "1", "loss": str(number)}))
    assert len(view.metrics) == 32
    assert view.metrics["loss"] == "99"
    assert max(map(len, view.metrics)) <= 64
    view.hear(RankMessage(rank=0, metrics={f"measured{number}": "1" for number in range(24)}))
    assert {"loss", *(f"measured{number}" for number in range(24))} <= set(view.metrics), "the last word is heard"


def test_sweep_takes_only_unfinished_work_of_earlier_attempts(tmp_path: Path) -> None:
    names = ["step-5.att-1.tmp", "step-9.att-2.tmp", "step-5.att-1", "step-4.att-1.bad", "notes"]
    for name in names:
        (tmp_path / name).mkdir()
    volume.sweep(tmp_path, 2)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(names[1:])


def test_prune_deletes_checkpoints_only(tmp_path: Path) -> None:
    for name in ("step-5.att-1", "notes"):
        (tmp_path / "job" / name).mkdir(parents=True)
    for path in ("notes", "../job", "step-5.att-1/..", "step-5.att-1"):
        volume.prune(tmp_path / "job", path)
    assert [p.name for p in (tmp_path / "job").iterdir()] == ["notes"]


# ---- tokens and the gate client


async def test_tokens_are_read_at_each_use_and_never_shown(tmp_path: Path) -> None:
    issuer, tokens = Issuer(), TokenFile(tmp_path)
    with pytest.raises(UnavailableError, match=r"bundle\.json"):
        tokens.read()
    (tmp_path / "bundle.json").write_text('{"tokens": {"agent/kc:execution": "eyJsecret"}}')
    with pytest.raises(UnavailableError) as error:
        tokens.read()
    assert "eyJ" not in str(error.value)
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "bundle.json").write_bytes(issuer.bundle("pod-0", 1).canonical())
    (tmp_path / "bundle.json").unlink()
    (tmp_path / "..data").symlink_to("v1")
    (tmp_path / "bundle.json").symlink_to("..data/bundle.json")
    assert (await tokens.wait_for_attempt(1, 1)).attempt == 1
    assert tokens.identity().job == "job"
    with pytest.raises(UnavailableError, match="are for attempt 1"):
        await tokens.wait_for_attempt(2, 0)
    (tmp_path / "v2").mkdir()
    (tmp_path / "v2" / "bundle.json").write_bytes(issuer.bundle("pod-0", 2).canonical())
    (tmp_path / "..next").symlink_to("v2")
    (tmp_path / "..next").rename(tmp_path / "..data")
    assert (await tokens.wait_for_attempt(2, 1)).attempt == 2


async def serve(handler: object, tmp_path: Path) -> tuple[web.AppRunner, GateClient]:
    app = web.Application()
    app.router.add_post("/v1/call/{op}", handler)  # type: ignore[arg-type]
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    (tmp_path / "bundle.json").write_bytes(Issuer().bundle("pod-0", 1).canonical())
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    return runner, GateClient(url, TokenFile(tmp_path), tmp_path / "ca.crt", jitter=lambda: 0.0)


async def test_client_waits_for_an_outage_but_not_for_a_refusal(tmp_path: Path) -> None:
    answers = [
        web.Response(status=502, text="<html>"),
        web.json_response({"error": "AuditUnavailable"}, status=503),
        web.json_response(to_reply(TooMuchSentError("too many calls"))[1].wire(), status=429),
        web.json_response(FeedReply(attempt=4, policy_generation=1).wire()),
        web.json_response({"error": "invalid_token"}, status=401),
    ]

    async def handler(_: web.Request) -> web.Response:
        return answers.pop(0)

    runner, client = await serve(handler, tmp_path)
    async with client:

        async def feed() -> FeedReply:
            return await client.call("interface.feed", "team/jobs/job", Empty(), FeedReply)

        assert (await client.patiently(feed, 60)).attempt == 4
        with pytest.raises(CapabilityError):
            await client.patiently(feed, 60)
        answers.append(web.Response(status=500))
        with pytest.raises(UnavailableError):
            await client.patiently(feed, 0)
    await runner.cleanup()


async def test_an_answer_may_come_in_pieces_and_not_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = FeedReply(attempt=4, policy_generation=1, revoked=tuple(f"{number:022}" for number in range(100)))

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        body = answer.canonical()
        for start in range(0, len(body), 100):
            await response.write(body[start : start + 100])
            await asyncio.sleep(0)  # the client's turn
        await response.write_eof()
        return response

    runner, client = await serve(handler, tmp_path)
    async with client:
        assert await client.call("interface.feed", "team/jobs/job", Empty(), FeedReply) == answer
        monkeypatch.setattr(gate_client, "MAX_ANSWER", 1_000)
        with pytest.raises(UnavailableError, match=r"interface.feed: the answer has more than 1000 bytes"):
            await client.call("interface.feed", "team/jobs/job", Empty(), FeedReply)
    await runner.cleanup()


async def test_client_gives_up_on_a_silent_gate_and_hides_the_token(tmp_path: Path) -> None:
    never = asyncio.Event()

    async def handler(_: web.Request) -> web.Response:
        await never.wait()
        return web.Response()

    runner, slow = await serve(handler, tmp_path)
    client = GateClient(slow._url, TokenFile(tmp_path), tmp_path / "ca.crt", timeout=0.2)
    async with client:
        with pytest.raises(UnavailableError) as error:
            await client.call("interface.feed", "team/jobs/job", Empty(), FeedReply)
        assert "eyJ" not in str(error.value)
    never.set()
    await runner.cleanup()


def make_ca(folder: Path) -> ssl.SSLContext:
    """A CA in `ca.crt` and a server context with a certificate of it for localhost."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test CA")])
    ca = _certificate(name, name, key, key, x509.BasicConstraints(ca=True, path_length=0))
    own = ec.generate_private_key(ec.SECP256R1())
    leaf_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gate")])
    leaf = _certificate(leaf_name, name, own, key, x509.SubjectAlternativeName([x509.DNSName("localhost")]))
    (folder / "ca.crt").write_bytes(ca.public_bytes(Encoding.PEM))
    private = own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "server.pem").write_bytes(private + leaf.public_bytes(Encoding.PEM))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "server.pem")
    return context


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    extension: x509.ExtensionType,
) -> x509.Certificate:
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(
        issuer,
        subject,
        key.public_key(),
        x509.random_serial_number(),
        now - timedelta(hours=1),
        now + timedelta(hours=1),
    )
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return (
        made.add_extension(extension, True)
        .add_extension(identifier, False)
        .add_extension(authority, False)
        .sign(signer, hashes.SHA256())
    )


async def test_client_trusts_the_mounted_ca_only_and_reads_it_anew(tmp_path: Path) -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.json_response(FeedReply(attempt=1, policy_generation=1).wire())

    app = web.Application()
    app.router.add_post("/v1/call/{op}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=make_ca(tmp_path)).start()
    (tmp_path / "bundle.json").write_bytes(Issuer().bundle("pod-0", 1).canonical())
    right = (tmp_path / "ca.crt").read_bytes()
    (tmp_path / "other").mkdir()
    make_ca(tmp_path / "other")
    (tmp_path / "ca.crt").write_bytes((tmp_path / "other" / "ca.crt").read_bytes())
    url = f"https://localhost:{runner.addresses[0][1]}"
    async with GateClient(url, TokenFile(tmp_path), tmp_path / "ca.crt") as client:
        with pytest.raises(UnavailableError, match="Certificate"):
            await client.call("interface.feed", "team/jobs/job", Empty(), FeedReply)
        (tmp_path / "ca.crt").write_bytes(right)
        assert (await client.call("interface.feed", "team/jobs/job", Empty(), FeedReply)).attempt == 1
    await runner.cleanup()


def test_forked_ranks_have_a_command_line_of_their_own() -> None:
    code = (
        "from kuangchao_worker.forge.title import set_title; set_title('kuangchao_worker.rank rank=3');"
        "print(open('/proc/self/cmdline').read().rstrip(chr(0)))"
    )
    path = ":".join(str(ROOT / part) for part in ("contracts", "worker"))
    done = subprocess.run(
        [sys.executable, "-c", code, "." * 64],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": path},
        timeout=60,
    )
    assert done.stdout.strip() == "kuangchao_worker.rank rank=3"
