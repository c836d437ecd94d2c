"""Files in deploy/: systemd accepts the units, which expose little; the daemon accepts the settings."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from prepserver.cli import exits
from prepserver.config import load_settings
from prepserver.daemon.server import KILL_S
from prepserver.daemon.systemd import ATTACH_NAME
from prepserver.protocol.messages import ATTACH_SOCKET
from prepserver.protocol.places import SYSTEM_RUNTIME_DIR
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
UNITS = ("prepserver.service", "prepserver.socket", "prepserver-metrics.service")
EXPOSURE_MOST = 2.0

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine"
)


def settings_of(unit: str) -> dict[str, list[str]]:
    """Every setting of a unit file with its values; comments are left out."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / unit).read_text().splitlines():
        if match := re.fullmatch(r"(\w+)=(.*)", line):
            found.setdefault(match[1], []).append(match[2])
    return found


@needs_systemd
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for unit in UNITS:
        # Only the program is not there on a machine where it is not installed.
        text = (DEPLOY / unit).read_text().replace("/opt/prepserver/bin/prepserver", sys.executable)
        (tmp_path / unit).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / unit) for unit in UNITS)],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    ours = [line for line in done.stderr.splitlines() if "prepserver" in line]
    assert (done.returncode, ours) == (0, []), done.stderr


@needs_systemd
def test_the_service_exposes_little() -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(DEPLOY / "prepserver.service")],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    if "unrecognized option" in done.stderr:
        pytest.skip("systemd-analyze is older than security --offline (systemd 250)")
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) <= EXPOSURE_MOST


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("PrivateUsers", "hides the uids of clients"),
        ("DynamicUser", "changes the uid with every start"),
        ("MemoryDenyWriteExecute", "breaks generated code"),
        ("MemoryHigh", "slows the daemon down for ever"),
        ("ProcSubset", "hides /proc/meminfo"),
    ],
)
def test_the_service_does_not_set_what_breaks_it(name: str, why: str) -> None:
    assert name not in settings_of("prepserver.service"), why
    assert f"# {name}=" in (DEPLOY / "prepserver.service").read_text(), f"says why not: {why}"


def test_the_service_survives_a_killed_worker_and_drains() -> None:
    service = settings_of("prepserver.service")
    assert service["OOMPolicy"] == ["continue"]
    assert service["KillMode"] == ["mixed"]
    assert service["Type"] == ["notify"]
    assert service["NotifyAccess"] == ["main"]
    assert int(service["WatchdogSec"][0]) >= 10
    assert int(service["TimeoutStopSec"][0]) > load_settings(None, {}).drain_s + KILL_S


def test_a_reload_fails_where_a_daemon_could_not_start() -> None:
    service = settings_of("prepserver.service")
    check, reread = service["ExecReload"]
    started = service["ExecStart"][0].replace("--foreground", "--check")
    assert (check, reread) == (started, "kill -HUP $MAINPID")


def test_the_service_lets_workers_confine_themselves() -> None:
    calls = " ".join(settings_of("prepserver.service")["SystemCallFilter"]).split()
    needed = {"landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self", "seccomp"}
    assert needed <= set(calls)


def test_socket_and_service_mean_one_place() -> None:
    socket, service = settings_of("prepserver.socket"), settings_of("prepserver.service")
    assert socket["ListenSequentialPacket"] == [f"{SYSTEM_RUNTIME_DIR}/{ATTACH_SOCKET}"]
    assert socket["FileDescriptorName"] == [ATTACH_NAME]
    assert (socket["SocketGroup"], socket["SocketMode"]) == (service["Group"], ["0660"])
    assert f"/run/{service['RuntimeDirectory'][0]}" == SYSTEM_RUNTIME_DIR
    assert f"--runtime-dir {SYSTEM_RUNTIME_DIR}" in service["ExecStart"][0]
    # else the service's first start after boot would give the socket to its own group, whatever SocketGroup= says
    owner, group, mode = service["User"][0], service["Group"][0], service["RuntimeDirectoryMode"][0]
    assert settings_of("prepserver-metrics.service")["SupplementaryGroups"] == socket["SocketGroup"]
    assert socket["ExecStartPre"] == [f"install -d -o {owner} -g {group} -m {mode} {SYSTEM_RUNTIME_DIR}"]
    # else a stop of the service would take the socket away with the directory
    assert service["RuntimeDirectoryPreserve"] == ["yes"]


def test_the_example_settings_are_settings() -> None:
    path = DEPLOY / "config.toml"
    settings = load_settings(path, {})
    assert settings.source_roots == ("/data",)
    assert settings.memory_bytes == 0, "must start on any machine, however small half of its memory is"
    # what is commented out is a setting, too
    text = re.sub(r"^#(\w+ = )", r"\1", path.read_text(), flags=re.MULTILINE)
    names = set(tomllib.loads(text)) - {"sources", "limits"}
    assert {"workers", "memory", "drain_s", "log_level", "socket_group", "socket_mode"} <= names


def test_every_setting_that_is_commented_out_shows_what_can_be(tmp_path: Path) -> None:
    text = re.sub(r"^#(\w+ = )", r"\1", (DEPLOY / "config.toml").read_text(), flags=re.MULTILINE)
    (tmp_path / "all.toml").write_text(text)
    assert load_settings(tmp_path / "all.toml", {}).drain_s == load_settings(None, {}).drain_s


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="systemd-sysusers is not on this machine")
def test_the_user_and_group_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    done = subprocess.run(
        ["systemd-sysusers", f"--root={tmp_path}", str(DEPLOY / "prepserver.sysusers")],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "prepserver:" in (tmp_path / "etc/passwd").read_text()
    assert "prepserver:" in (tmp_path / "etc/group").read_text()


def test_containers_share_only_the_socket_directory() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    assert text.count(f"- {SYSTEM_RUNTIME_DIR}:{SYSTEM_RUNTIME_DIR}\n") == 2
    said = "\n".join(line.split("#")[0] for line in text.splitlines())
    assert not re.search(r"\b(ipc|pid|shm_size|privileged|/dev/shm)\b", said)


def test_a_daemon_in_a_pod_fits_and_shares_only_its_sockets() -> None:
    yaml = pytest.importorskip("yaml")
    folder = DEPLOY / "kubernetes"
    settings = load_settings(folder / "config.toml", {})
    pod = yaml.safe_load((folder / "daemonset.yaml").read_text())["spec"]["template"]["spec"]
    train = yaml.safe_load((folder / "training-pod.yaml").read_text())["spec"]
    (daemon,) = pod["containers"]
    limit_bytes = int(daemon["resources"]["limits"]["memory"].removesuffix("Gi")) << 30
    assert 1.25 * (settings.memory_bytes + settings.cache_memory_bytes) < limit_bytes
    assert settings.drain_s + KILL_S < pod["terminationGracePeriodSeconds"]
    assert not {"hostIPC", "hostPID", "hostNetwork"} & (pod.keys() | train.keys())
    assert pod["hostUsers"]
    assert train["hostUsers"]
    assert set(settings.source_roots) < {mount["mountPath"] for mount in daemon["volumeMounts"]}
    (mount,) = train["containers"][0]["volumeMounts"]
    assert mount in daemon["volumeMounts"]
    assert mount["mountPath"] == str(SYSTEM_RUNTIME_DIR)
    assert pod["securityContext"]["runAsGroup"] in train["securityContext"]["supplementalGroups"]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not on this machine")
def test_kustomize_takes_the_manifests() -> None:
    done = subprocess.run(
        ["kubectl", "kustomize", str(DEPLOY / "kubernetes")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for kind in ("Namespace", "ConfigMap", "DaemonSet"):
        assert f"kind: {kind}\n" in done.stdout


def test_the_runbook_names_every_file_and_exit_code() -> None:
    text = (DEPLOY / "README.md").read_text()
    for path in DEPLOY.iterdir():
        assert path.name == "README.md" or f"`{path.name}`" in text, path.name
    text = (DEPLOY.parent / "docs" / "command-line.md").read_text()
    for name, code in vars(exits).items():
        if isinstance(code, int):
            assert f"| {code} |" in text, name


def test_a_setup_that_fails_can_be_tried_again(tmp_path: Path) -> None:
    """A half-made environment is its own; it refuses only one that somebody else has made."""
    environment, wheels, stubs = tmp_path / "opt", tmp_path / "wheels", tmp_path / "stubs"
    for folder in (wheels, stubs):
        folder.mkdir()
    (wheels / f"prepserver-1_{platform.machine()}.whl").touch()
    (stubs / "python3").write_text(f"#!/bin/sh\nmkdir -p {environment}\necho no room >&2\nexit 1\n")
    (stubs / "id").write_text("#!/bin/sh\necho 0\n")
    for stub in stubs.iterdir():
        stub.chmod(0o755)
    script = (DEPLOY / "debian" / "bin" / "prepserver-setup").read_text()
    for path, other in (("/opt/prepserver", environment), ("/usr/share/prepserver", wheels), ("/usr/bin", stubs)):
        script = script.replace(path, str(other))
    command = ["sh", "-c", script, "prepserver-setup"]
    for _ in range(2):
        done = subprocess.run(
            command, env={"PATH": f"{stubs}:/usr/bin:/bin"}, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (1, "no room\n")
