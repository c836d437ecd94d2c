"""The command line says what it does, and its exit codes tell cases apart."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import pytest
import torch

from prepserver import __version__, cli
from prepserver.__main__ import main as start
from prepserver.audit.logfile import LogFile
from prepserver.cli import ask, exits, main
from prepserver.daemon.quarantine import Quarantine
from prepserver.protocol.codec import encode
from prepserver.protocol.messages import ATTACH_SOCKET, Refused
from prepserver.protocol.places import RUNTIME_DIR_VARIABLE, SYSTEM_RUNTIME_DIR
from tests.support.server import environment
from tests.support.waiting import PATIENCE_S

COMMANDS = ["start", "status", "stop", "demo"]


def said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    try:
        code = main(arguments)
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else -1
    out = capsys.readouterr()
    return code, " ".join(out.out.split()), " ".join(out.err.split())


def test_no_command_asks_where_another_user_may_listen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RUNTIME_DIR_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "prepserver").mkdir()
    (tmp_path / "prepserver" / ATTACH_SOCKET).touch()
    tmp_path.chmod(0o1777)
    with pytest.raises(ask.AskError, match=f"no daemon runs in {tmp_path}/prepserver"):
        ask.ask_status(None)
    another = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: another)
    with pytest.raises(ask.AskError, match=f" in {SYSTEM_RUNTIME_DIR}"):
        ask.ask_status(None)


@pytest.mark.parametrize(
    "words", ["--help", "--version", "stop --help", "completion bash", "doctor --seconds 0 --json"]
)
@pytest.mark.parametrize("out", [">/dev/full", ">&-", ">&- <&-"])
def test_an_output_that_cannot_be_written_is_said_in_a_line(words: str, out: str) -> None:
    command = f"exec {shlex.quote(sys.executable)} -m prepserver.cli {words} {out}"
    done = subprocess.run(["sh", "-c", command], env=environment(), stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == exits.FAILED
    reason = "No space left on device" if "full" in out else "Bad file descriptor"
    assert done.stderr.startswith("prepserver")
    assert done.stderr.endswith(f": cannot write its output: {reason}\n")
    assert done.stderr.count("\n") == 1


def test_an_error_of_another_file_is_not_one_of_the_output() -> None:
    """Though it does not name its file."""
    program = """import errno, sys
from prepserver.cli import completion, main
def broken(_): print("first"); raise OSError(errno.EIO, "a broken disk")
completion.completion = broken
sys.exit(main(["completion", "bash"]))"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "first\n")
    assert done.stderr.endswith("OSError: [Errno 5] a broken disk\n")
    assert "output" not in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_each_command_explains_it_and_its_exit_codes(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = said([command, "--help"], capsys)
    assert (code, err) == (0, "")
    assert f"usage: prepserver {command}" in out
    assert "exit codes: 0 ok; 1 failed; 2 bad argument" in out
    assert len(out) > 400


def test_the_help_of_all_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(["--help"], capsys)
    assert code == 0
    assert all(f" {command} " in out for command in COMMANDS)
    assert "exit codes" in out


def test_the_help_of_start_tells_settings_defaults_and_signals(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(["start", "--help"], capsys)[1]
    for word in ("--workers", "--memory", "--runtime-dir", "--config", "--log-level", "--foreground", "--daemon",
                 "SIGTERM", "TOML", "sample_timeout_s", "PREPSERVER_RUNTIME_DIR"):  # fmt: skip
        assert word in out
    assert "--lifeline" not in out


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(["--version"], capsys)
    assert (code, err) == (0, "")
    commit = r"\(commit ([0-9a-f]{10}\+?|unknown)\)"
    release = re.escape(torch.__version__.partition("+")[0])  # of PyPI's wheel only torch itself says that it is +cu130
    packages = rf"packages: Python .*, torch {release}(\+\w+)?, pillow .*, simplejpeg .*"
    assert re.fullmatch(f"prepserver {__version__} {commit} kernels: (compiled|none), .* {packages}", out)


@pytest.mark.parametrize(
    ("line", "command", "reason"),
    [
        ("", "prepserver", "the following arguments are required: COMMAND"),
        ("dance", "prepserver", "argument COMMAND: invalid choice: 'dance' "),
        ("statsu", "prepserver", "argument COMMAND: invalid choice: 'statsu' (did you mean status?)"),
        ("start --wrokers 3", "prepserver start", "unrecognized arguments: --wrokers 3 (did you mean --workers?)"),
        ("status --jsn=3", "prepserver status", "unrecognized arguments: --jsn=3 (did you mean --json?)"),
        ("stop now", "prepserver stop", "unrecognized arguments: now"),
        ("start --log-level loud", "prepserver start", "argument --log-level: invalid choice: 'loud' "),
        ("demo --jobs 0", "prepserver demo", "argument --jobs: 0 is not between 1 and 64"),
        ("audit", "prepserver audit", "the following arguments are required: JOB"),
    ],
)
def test_an_error_names_command_argument_and_help(
    line: str, command: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = said(line.split(), capsys)
    assert (code, out) == (exits.USAGE, "")
    assert err.startswith(f"{command}: {reason}")
    assert err.endswith(f" Try `{command} --help`.")


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [(["--data", "/nowhere"], exits.FAILED, "/nowhere"), (["--workers", "many"], exits.USAGE, "--workers = 'many'")],
)
def test_what_the_demo_cannot_use_is_named(
    arguments: list[str], code: int, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, _, err = said(["demo", *arguments], capsys)
    assert found == code
    assert named in err


def test_ctrl_c_while_the_arguments_are_read_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raised where the parser is made, which takes long enough on a busy machine to be hit."""

    def interrupted() -> None:
        raise KeyboardInterrupt  # as the signal does, which a test run in the background ignores

    monkeypatch.setattr(cli, "command_line", interrupted)
    assert main(["status"]) == 130


@pytest.mark.parametrize(
    "arguments", [["--workers", "0"], ["--memory", "lots"], ["--config", "/none.toml"], ["-d", "--foreground"]]
)
def test_a_setting_that_cannot_be_exits_with_2_and_names_it(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = said(["start", "--runtime-dir", str(tmp_path / "run"), *arguments], capsys)
    assert (code, out) == (exits.USAGE, "")
    assert arguments[0].lstrip("-") in err or "--daemon" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", [["status"], ["status", "--json"], ["stop"]])
@pytest.mark.parametrize("there", [True, False])
def test_without_a_daemon_a_command_exits_with_3(
    command: list[str], there: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the directory in which it looked."""
    place = tmp_path if there else tmp_path / "none"
    code, out, err = said([*command, "--runtime-dir", str(place)], capsys)
    assert (code, out) == (exits.NO_DAEMON, "")
    assert err == f"prepserver {command[0]}: no daemon runs in {place}"


def test_a_place_that_is_no_socket_is_said_to_be_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("prometheus_client")
    for place, why in (
        (tmp_path, "exists and is not a socket"),
        (tmp_path / "none" / "s", "No such file or directory"),
    ):
        code, _, err = said(["metrics", "--listen", f"unix:{place}"], capsys)
        assert code == exits.USAGE
        assert err.startswith(f"prepserver metrics: --listen unix:{place}: {why}")
    assert tmp_path.is_dir()


@pytest.mark.parametrize("command", [["quarantine"], ["quarantine", "--json"], ["audit", "job"]])
def test_a_cache_dir_that_is_missing_is_named(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = said([*command, "--cache-dir", str(tmp_path / "none")], capsys)
    assert (code, out) == (exits.USAGE, "")
    assert err == f"prepserver {command[0]}: --cache-dir {tmp_path}/none: no such folder"


@pytest.mark.skipif(os.getuid() == 0 and shutil.which("setpriv") is None, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "quarantine"
    folder.mkdir(mode=0)
    words = [sys.executable, "-m", "prepserver.cli", "quarantine", "--cache-dir", str(tmp_path)]
    command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *words] if os.getuid() == 0 else words
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (exits.NO_PERMISSION, "")
    assert done.stderr == f"prepserver quarantine: {folder}: Permission denied\n"


@pytest.mark.parametrize("words", ["replay --batch 0 -o row.png", "tune"])
def test_a_log_without_a_training_is_said_to_have_none(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its daemon was killed before the job had attached."""
    log = LogFile(tmp_path / "audit", "resnet", os.getuid())
    log.close()
    code, _, err = said([*words.split(), "--job", "resnet", "--cache-dir", str(tmp_path)], capsys)
    assert (code, err) == (
        exits.FAILED, f"prepserver {words.split()[0]}: the log of job 'resnet' ({log.path}) holds no training",
    )  # fmt: skip


def test_before_the_first_quarantine_none_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default folder is made with the first sample in it."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    none = f"no sample is quarantined in {tmp_path}/none/quarantine"
    assert said(["quarantine"], capsys) == (exits.OK, "", none)
    assert said(["quarantine", "--json"], capsys) == (exits.OK, "[]", "")
    assert said(["quarantine", "--clear-all"], capsys) == (exits.OK, "", none)
    assert said(["quarantine", "--clear", "3"], capsys)[0] == exits.FAILED


def test_without_the_named_daemon_no_quarantine_is_cleared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    Quarantine(tmp_path / "quarantine").add("ab" * 32, 3, "it crashed", "/data")
    named = ["--runtime-dir", str(tmp_path / "run")]
    code, out, err = said(["quarantine", "--clear-all", *named], capsys)
    assert (code, out) == (exits.NO_DAEMON, "")
    assert f"no daemon runs in {tmp_path}/run. Nothing is changed: start it, or name the folder" in err
    code, out, err = said(["quarantine", *named], capsys)
    assert (code, "it crashed" in out) == (exits.OK, True)
    assert f"no daemon runs in {tmp_path}/run. This reads {tmp_path} (--cache-dir" in err
    monkeypatch.setenv("PREPSERVER_RUNTIME_DIR", named[1])
    assert said(["quarantine", "--clear", "3"], capsys)[0] == exits.NO_DAEMON
    code, out, _ = said(["quarantine", "--clear-all", "--cache-dir", str(tmp_path)], capsys)
    assert (code, out) == (exits.OK, f"cleared: sample 3 in {tmp_path}/quarantine")


@pytest.mark.parametrize("option", ["--runtime-dir", "--cache-dir"])
def test_an_empty_name_of_a_folder_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As that of a variable that is not set: the default is another folder."""
    with pytest.raises(SystemExit) as ended:
        main(["quarantine", option, "", "--clear-all"])
    assert ended.value.code == exits.USAGE
    assert f"{option}: the name is empty" in capsys.readouterr().err


def test_a_trace_that_cannot_be_is_refused_before_it_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--seconds", "600", "--runtime-dir", str(tmp_path)]
    assert said(["trace", "-o", str(tmp_path / "trace.json"), *place], capsys)[0] == exits.NO_DAEMON
    code, _, err = said(["trace", "-o", str(tmp_path / "none" / "trace.json"), *place], capsys)
    assert (code, err) == (
        exits.USAGE,
        f"prepserver trace: -o {tmp_path}/none/trace.json: there is no folder {tmp_path}/none",
    )


def test_a_socket_that_a_killed_daemon_left_is_no_daemon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.bind(str(tmp_path / "attach.sock"))
    assert said(["status", "--runtime-dir", str(tmp_path)], capsys)[0] == exits.NO_DAEMON


@pytest.mark.parametrize("command", [["stop"], ["metrics", "--once"]])
@pytest.mark.parametrize(("code", "exit_code"), [("permission", exits.NO_PERMISSION), ("busy", exits.FAILED)])
def test_a_refusal_is_told_in_the_daemons_words(
    code: str, exit_code: int, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import threading

    if command[0] == "metrics":
        pytest.importorskip("prometheus_client")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.bind(str(tmp_path / "attach.sock"))
        s.listen(1)

        def refuse() -> None:
            peer, _ = s.accept()
            with peer:
                peer.send(encode(Refused(code, "not for you")))

        daemon = threading.Thread(target=refuse)
        daemon.start()
        found = said([*command, "--runtime-dir", str(tmp_path)], capsys)
        daemon.join(PATIENCE_S)
    assert found == (exit_code, "", f"prepserver {command[0]}: not for you")


def test_a_daemon_in_a_bad_place_is_not_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = said(["start", "--workers", "1", "--runtime-dir", str(tmp_path / "no" / "such")], capsys)
    assert code == exits.NO_PERMISSION
    assert "no/such" in err


def test_a_cache_dir_that_cannot_be_made_starts_no_daemon(short_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder above it can be written to, as far as its mode says."""
    place = ["--workers", "1", "--runtime-dir", str(short_path / "run")]
    code, _, err = said(["start", *place, "--cache-dir", "/proc/none/cache"], capsys)
    assert code == exits.USAGE
    assert err.startswith("prepserver start: cache_dir = /proc/none/cache")
    assert "Choose another folder (--cache-dir)" in err
    (short_path / "open").mkdir()
    (short_path / "open").chmod(0o777)
    code, _, err = said(["start", *place, "--cache-dir", str(short_path / "open")], capsys)
    assert (code, "can be written by others" in err) == (exits.USAGE, True)
    assert not (short_path / "run").exists()


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "prepserver", "--version"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.split()[:2]) == (exits.OK, ["prepserver", __version__])


@pytest.mark.parametrize(
    ("line", "found"),
    [("prepserver st", {"start", "status", "stop"}), ("prepserver status --j", {"--json"}),
     ("prepserver start --log-level d", {"debug"})],
)  # fmt: skip
def test_bash_completes_commands_options_and_choices(
    line: str, found: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", "bash"]) == exits.OK
    script = capsys.readouterr().out
    ask = f'COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _prepserver; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == found


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_for_other_shells_is_a_valid_script(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == exits.OK
    text = capsys.readouterr().out
    assert "runtime-dir" in text
    if shutil.which(shell):
        (tmp_path / "script").write_text(text)
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)


def test_ctrl_c_while_the_command_line_is_imported_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(MetaPathFinder):
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "prepserver.cli":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "prepserver.cli")
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    assert start() == 130
