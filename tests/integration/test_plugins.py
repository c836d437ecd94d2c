"""Plug-ins in real daemons: the same bytes everywhere, and every way in which they may fail."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prepclient import (
    Arrays,
    BadSampleError,
    CenterCrop,
    Csv,
    InvalidSpec,
    MemoryRefused,
    PadBoxes,
    Plugin,
    PluginOp,
    PrepClient,
    RandomResizedCrop,
    SanitizeBoxes,
    SourceChanged,
    SourceUnavailable,
    SyntheticImages,
    Take,
    ToLayout,
    kinds,
)
from tests.support import forked, leaks
from tests.support.logged import await_logged
from tests.support.server import Server, cli, environment
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).parents[2]
OWNER = REPOSITORY / "tests" / "support" / "owner"
COLUMNS = {
    "image": kinds.Image(size=(8, 8)),
    "text": kinds.Text(),
    "drawn": kinds.Array((3,)),
    "label": kinds.Label(),
}
SOURCE = Plugin("numbers", columns=COLUMNS)
SPELLED = PluginOp("spelled", column="text", returns=kinds.Array((12,), "int64"), length=12)
OPS = [
    PluginOp("noise", most=40),
    SPELLED,
    PluginOp("halved", returns=kinds.Image(size=(4, 4), dtype="float32")),
]
MANY = SyntheticImages(100_000, size=16)
SPEC: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3}


def path_with(*folders: Path) -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join([environment()["PYTHONPATH"], *map(str, folders)])}


@pytest.fixture(scope="module")
def owned() -> Iterator[Server]:
    """A daemon that has loaded the plug-ins, and gives a sample 3 s."""
    arguments = ["--plugin", "owner_code"]
    with Server(workers=2, settings={"sample_timeout_s": 3.0}, arguments=arguments, env=path_with(OWNER)) as server:
        yield server


@pytest.fixture
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(OWNER)


def test_an_op_may_write_to_an_array_that_others_read(on_path: None, tmp_path: Path) -> None:
    """Noise is added in place; what a source gives of an array is no copy."""
    given = np.arange(80, dtype=np.uint8).reshape(16, 5)
    np.save(tmp_path / "x.npy", given)
    source, noise = Arrays(x=tmp_path / "x.npy"), PluginOp("noise", column="x", returns=kinds.Array((5,), "uint8"))
    with PrepClient(source, [noise], batch_size=16, inline=True, plugins="owner_code", fields="dict") as client:
        (batch,) = client
    assert (batch["x"].numpy() >= given[batch["index"].numpy()]).all()
    assert not (batch["x"].numpy() == given[batch["index"].numpy()]).all()


def test_an_op_gets_the_same_image_whatever_the_row(on_path: None) -> None:
    ops = [RandomResizedCrop(8), PluginOp("noise")]
    last, first = (
        epochs(PrepClient(Take(MANY, 8), [*ops, ToLayout(layout)], inline=True, plugins="owner_code", batch_size=8), 1)
        for layout in ("HWC", "CHW")
    )
    assert torch.equal(last[0].permute(0, 3, 1, 2), first[0])


def epochs(client: PrepClient, count: int = 2) -> list[torch.Tensor]:
    with client:
        return [field for _ in range(count) for batch in client for field in batch]


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_rows_of_plugins_are_the_same_wherever_made(owned: Server, on_path: None) -> None:
    two = epochs(PrepClient(SOURCE, OPS, runtime_dir=owned.runtime_dir, **SPEC))
    assert equal(two, epochs(PrepClient(SOURCE, OPS, inline=True, plugins="owner_code", **SPEC)))
    images, texts, drawn, labels = two[:4]
    assert (images.shape, images.dtype) == ((8, 3, 4, 4), torch.float32)
    assert (texts.shape, drawn.shape, labels.shape) == ((8, 12), (8, 3), (8,))
    assert bytes(texts[0][:6].tolist()) == b"sample"
    assert len(set(map(tuple, drawn.tolist()))) == 8  # each sample has numbers of its own, the same in each process
    assert not torch.equal(two[0].sort(0).values, two[12].sort(0).values)  # and each epoch others, of an op


def test_a_dataset_may_take_any_memory_when_it_is_listed(owned: Server) -> None:
    source = Plugin("numbers", columns=COLUMNS, how="names its limit")
    with PrepClient(source, [SPELLED], batch_size=24, runtime_dir=owned.runtime_dir) as client:
        assert client.dataset.classes == [str(resource.getrlimit(resource.RLIMIT_DATA)[0]), "odd"]


def test_a_dataset_of_pairs_has_classes_and_views(owned: Server, on_path: None) -> None:
    source = Plugin("pairs", n=10)
    with PrepClient(source, [CenterCrop(2)], batch_size=5, views=2, runtime_dir=owned.runtime_dir) as client:
        for (a, b), labels in client:
            assert torch.equal(a, b)
            assert torch.equal(a[:, 0, 0, 0].long(), labels)
    with PrepClient(SOURCE, OPS, inline=True, plugins="owner_code", **SPEC) as client:
        assert client.dataset.classes == ["even", "odd"]


def test_jobs_share_what_plugins_make(owned: Server) -> None:
    ops = [PluginOp("noise"), SPELLED]
    first, second = (PrepClient(SOURCE, ops, runtime_dir=owned.runtime_dir, **SPEC) for _ in range(2))
    with first, second:
        next(iter(first))
        next(iter(second))
        (stream,) = owned.status()["streams"]
        assert stream["lanes"][0]["jobs"] == 2


def assert_level(level: int, batches: Iterable[list[torch.Tensor]]) -> None:
    for images, *_ in batches:
        assert (images == level).all()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raises", r"op plug-in 'odd' raised ValueError at owner_code.py:\d+: too dark: .udcff !"),
        ("raises of storage", r"op plug-in 'odd' raised FileNotFoundError at owner_code.py:\d+: no lookup table"),
        (
            "asks numpy for too much",
            r"op plug-in 'odd' raised MemoryError at owner_code.py:\d+: .*worker_memory in the config",
        ),
        ("asks torch for too much", r"op plug-in 'odd' raised RuntimeError at owner_code.py:\d+: .* allocate memory"),
        ("shape", r"declares an image of shape \(8, 8, 3\) and dtype uint8 and gives ndarray of shape \(3, 8, 3\)"),
        ("dtype", r"declares .* dtype uint8 and gives ndarray of shape \(8, 8, 3\) and dtype float32"),
        ("nothing", r"declares .* and gives NoneType"),
        ("hangs", r"quarantined for this pipeline: workers died or hung while they made its row"),
        ("leaves", r"quarantined for this pipeline"),
        ("crashes", r"quarantined for this pipeline"),
    ],
)
def test_an_op_that_goes_wrong_costs_one_sample(owned: Server, how: str, said: str) -> None:
    """The other lane of the same stream gets the sample."""
    ops = [SPELLED, PluginOp("odd", how=how, at=5)]
    spec: dict[str, Any] = {"batch_size": 24, "runtime_dir": owned.runtime_dir, "seed": len(how), "timeout_s": 600.0}
    with PrepClient(SOURCE, ops, **spec) as client, PrepClient(SOURCE, [SPELLED], **spec) as other:
        with pytest.raises(BadSampleError, match=said) as caught:
            next(iter(client))
        assert caught.value.index == 5
        assert "numbers[5]" in str(caught.value)
        assert next(iter(other))[0][:, 0, 0, 0].tolist() == list(range(24))
    with PrepClient(SOURCE, ops, on_error="mask", **spec) as client:
        valid = next(iter(client))[-1]
        assert valid.tolist() == [index != 5 for index in range(24)]
    if how == "leaves":
        kept = json.loads(cli("quarantine", "--json", "--runtime-dir", str(owned.runtime_dir)).stdout)
        assert {each["reason"] for each in kept} == {
            "workers crashed on it, exited, or took longer than sample_timeout_s"
        }


@pytest.mark.parametrize("how", ["raises", "crashes"])
def test_an_op_on_blocks_that_goes_wrong_costs_one_sample(owned: Server, how: str, tmp_path: Path) -> None:
    """Also if it ends the worker, which cannot say in which of a block's samples that was."""
    np.save(tmp_path / "x.npy", np.arange(48).reshape(24, 2))
    op = PluginOp("shaken", column="x", block=True, how=how, at=10)
    spec: dict[str, Any] = {"batch_size": 24, "on_error": "mask", "timeout_s": 600.0}
    with PrepClient(Arrays(x=tmp_path / "x.npy"), [op], runtime_dir=owned.runtime_dir, **spec) as client:
        valid = next(iter(client))[-1]
    assert valid.tolist() == [index != 5 for index in range(24)]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raises", r"source plug-in 'numbers' raised ValueError at owner_code.py:\d+: too dark: .udcff !"),
        ("raises of storage", r"source plug-in 'numbers' raised FileNotFoundError at owner_code.py:\d+: "),
        (
            "asks numpy for too much",
            r"source plug-in 'numbers' raised MemoryError at owner_code.py:\d+: .*worker_memory in the config",
        ),
        (
            "asks torch for too much",
            r"source plug-in 'numbers' raised RuntimeError at owner_code.py:\d+: .* allocate memory",
        ),
        ("shape", r"column image, declares Image of 8 x 8 pixels and gives ndarray of shape \(3, 8, 3\)"),
        ("dtype", r"column image, declares .* gives ndarray of shape \(8, 8, 3\) and dtype float32"),
        ("hangs", r"quarantined: workers died or hung on it"),
        ("crashes", r"quarantined: workers died or hung on it"),
    ],
)
def test_a_dataset_that_goes_wrong_costs_one_sample(owned: Server, how: str, said: str) -> None:
    source = Plugin("numbers", columns=COLUMNS, how=how, at=7)
    with (
        PrepClient(source, [SPELLED], batch_size=24, runtime_dir=owned.runtime_dir, timeout_s=600.0) as client,
        pytest.raises(BadSampleError, match=said) as caught,
    ):
        next(iter(client))
    assert caught.value.index == 7


def test_an_odd_value_follows_its_rule_or_costs_one_sample(owned: Server) -> None:
    """Boxes outside and an empty mask are values, and so is NaN in an array; NaN in a box is a bad sample."""
    columns = {
        "image": kinds.Image(), "mask": kinds.Mask(), "boxes": kinds.Boxes(), "labels": kinds.PerBox(),
        "drawn": kinds.Array((2,)),
    }  # fmt: skip
    source, crop = Plugin("strays", columns=columns, n=8), CenterCrop(8)
    spec: dict[str, Any] = {"batch_size": 8, "fields": "dict", "on_error": "mask", "runtime_dir": owned.runtime_dir}
    with (
        PrepClient(SOURCE, [SPELLED], batch_size=24, seed=98, runtime_dir=owned.runtime_dir) as other,
        PrepClient(source, [crop, PadBoxes(2)], **spec) as plain,
        PrepClient(source, [crop, SanitizeBoxes(), PadBoxes(2)], **spec) as clean,
    ):
        every, kept = next(iter(plain)), next(iter(clean))
        assert next(iter(other))[0][:, 0, 0, 0].tolist() == list(range(24))
    assert every["valid"].tolist() == kept["valid"].tolist() == [n not in (3, 5, 6) for n in range(8)]
    assert every["boxes"][:3].tolist() == [[[1, 1, 5, 5], [0] * 4], [[0] * 4, [2, 2, 8, 8]], [[0] * 4] * 2]
    assert every["labels"][:3].tolist() == [[1, -1], [2, 3], [-1, -1]]
    assert kept["count"][:3].tolist() == [1, 1, 0]  # the crop clamps one, and the other lies outside
    assert every["mask"].sum((1, 2))[:3].tolist() == [64, 64, 0]
    assert every["drawn"][4].isnan().tolist() == [True, False]
    with (
        PrepClient(source, [crop, PadBoxes(2)], batch_size=8, runtime_dir=owned.runtime_dir) as client,
        pytest.raises(BadSampleError, match="boxes: has a number that is not finite; must be finite numbers") as caught,
    ):
        next(iter(client))
    assert caught.value.index == 3


@pytest.mark.parametrize(
    ("how", "said"),
    [("dtype", "op plug-in 'odd' declares an image of shape"), ("crashes", "workers died or hung in its ops")],
)
def test_an_op_that_never_works_ends_its_jobs_only(owned: Server, how: str, said: str) -> None:
    ops = [SPELLED, PluginOp("odd", how=how, at=-1)]
    spec: dict[str, Any] = {"batch_size": 24, "runtime_dir": owned.runtime_dir, "seed": 99}
    with PrepClient(SOURCE, [SPELLED], **spec) as other, PrepClient(SOURCE, ops, on_error="skip", **spec) as client:
        rest = iter(other)
        next(rest)
        with pytest.raises(InvalidSpec, match=said):
            next(iter(client))
        assert len(list(other)) == 1
    wait_until(lambda: not owned.status()["jobs"], why=owned.log)
    assert "belong on the line" not in owned.log(), "the client's farewell is no offence"


def test_an_op_that_never_works_says_so_without_a_daemon_too(on_path: None, caplog: pytest.LogCaptureFixture) -> None:
    ops = [SPELLED, PluginOp("odd", how="dtype", at=-1)]
    with (
        PrepClient(SOURCE, ops, inline=True, plugins="owner_code", batch_size=24) as client,
        pytest.raises(InvalidSpec, match=r"at 9 samples in a row.*, .* op plug-in 'odd' declares an image of shape"),
    ):
        next(iter(client))
    assert "Traceback" not in caplog.text  # it would show no line of the plug-in


def test_a_file_that_an_op_cannot_use_is_named(on_path: None, tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"noise")
    (tmp_path / "a.csv").write_text("sound\na.wav\n")
    op = PluginOp("spelled", column="sound", returns=kinds.Array((2,), "int64"), length=2)
    source = Csv(tmp_path / "a.csv", {"sound": kinds.Bytes()})
    with (
        PrepClient(source, [op], inline=True, plugins="owner_code", batch_size=1) as client,
        pytest.raises(InvalidSpec, match=rf"a\.csv, line 2: .* raised TypeError .*\(sound {tmp_path}/a\.wav\)"),
    ):
        next(iter(client))


def test_a_dataset_that_cannot_be_made_says_why(owned: Server) -> None:
    source = Plugin("numbers", columns=COLUMNS, how="no dataset")
    with (
        PrepClient(source, [SPELLED], runtime_dir=owned.runtime_dir) as client,
        pytest.raises(SourceUnavailable, match=r"numbers\(how='no dataset'\) cannot be made: RuntimeError: the data"),
    ):
        len(client)
    with pytest.raises(InvalidSpec, match="rows would differ in shape"):
        PrepClient(Plugin("numbers"), [])


def test_what_is_not_loaded_is_refused_by_name(owned: Server) -> None:
    for source, ops, field in (
        (SOURCE, [SPELLED, PluginOp("os.system")], r"pipeline\[2\].name = 'os.system'"),
        (SOURCE, [SPELLED, PluginOp("numbers")], r"pipeline\[2\].name = 'numbers'"),  # a source is no op
        (Plugin("json", columns=COLUMNS), [SPELLED], r"source.name = 'json'|name = 'json'"),
    ):
        with (
            PrepClient(source, ops, runtime_dir=owned.runtime_dir) as client,
            pytest.raises(InvalidSpec, match=field + ".*loaded are: .*"),
        ):
            len(client)
    assert {each["name"] for each in owned.status()["plugins"]} == {
        *("noise", "halved", "spelled", "odd", "slow", "shaken", "joint", "joint_block", "strays"), "numbers", "pairs",
    }  # fmt: skip


def test_what_no_machine_can_hold_is_refused(owned: Server) -> None:
    huge = PluginOp("spelled", column="text", returns=kinds.Array((16384,) * 4, "int64"), length=1)
    with PrepClient(SOURCE, [huge], runtime_dir=owned.runtime_dir) as client, pytest.raises(MemoryRefused):
        len(client)


def test_a_client_of_a_shared_daemon_names_no_plugins(owned: Server) -> None:
    with pytest.raises(InvalidSpec, match="configuration of a shared daemon names its plug-ins"):
        PrepClient(SOURCE, OPS, runtime_dir=owned.runtime_dir, plugins="owner_code", **SPEC)
    client = PrepClient(SOURCE, OPS, runtime_dir=owned.runtime_dir, plugins="owner_code", workers=1, **SPEC)
    with client, pytest.raises(InvalidSpec, match=re.escape(f"One runs in {owned.runtime_dir}")):
        len(client)


def test_a_private_daemon_takes_the_plugins_of_its_process(on_path: None, tmp_path: Path) -> None:
    spec = SPEC | {"workers": 2, "runtime_dir": tmp_path}
    served = epochs(PrepClient(SOURCE, OPS, plugins="owner_code", **spec))
    assert equal(served, epochs(PrepClient(SOURCE, OPS, inline=True, plugins=["owner_code"], **SPEC)))
    with PrepClient(SOURCE, OPS, plugins="owner_code", **spec) as client:
        len(client)
        more = PrepClient(SOURCE, OPS, plugins=["owner_code", "json:dumps"], **spec)
        with pytest.raises(InvalidSpec, match="private daemon of this process runs already, with plugins"):
            len(more)


@pytest.mark.parametrize("how", ["workers=1", "inline=True"])
def test_a_script_without_a_guard_is_told_and_leaves_nothing(how: str, tmp_path: Path) -> None:
    """Each zygote imported the script, which started the next daemon."""
    script = tmp_path / "unguarded.py"
    script.write_text(
        "from prepclient import *\n"
        "class Data:\n    def __len__(self): return 8\n    def __getitem__(self, index): return (index,)\n"
        "source = Plugin('Data', columns={'label': kinds.Label()})\n"
        f"for batch in PrepClient(source, [], {how}, plugins='unguarded:Data'): pass\n"
    )
    env = environment(PREPSERVER_RUNTIME_DIR=str(tmp_path / "none"), TMPDIR="/tmp", **{leaks.MARK: tmp_path.name})
    try:
        ended = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, check=False)
    finally:
        script.unlink()  # so that no process can go on
    assert 'the loop must stand under `if __name__ == "__main__":`, because' in ended.stderr
    assert "waiting up to 90 s" not in ended.stderr.partition("Its log before that")[2]  # no daemon of a daemon
    assert leaks.marked(tmp_path.name) == {}


def test_a_private_daemon_that_runs_old_code_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a notebook where another client is still open when a cell is run again."""
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "edited.py"
    options: dict[str, Any] = {"batch_size": 4, "workers": 1, "runtime_dir": tmp_path, "plugins": "edited"}
    ops = [CenterCrop(4), PluginOp("filled")]

    def filled(value: int) -> torch.Tensor:
        file.write_text(f"def filled(image, rng): return image * 0 + {value}\nprepserver_ops = {{'filled': filled}}")
        with PrepClient(SyntheticImages(4, size=8), ops, **options) as client:
            return torch.cat([images.clone() for images, _ in client])

    with PrepClient(SyntheticImages(8, size=8), ops[:1], **options) as other:
        file.write_text("def filled(image, rng): return image * 0 + 1\nprepserver_ops = {'filled': filled}")
        len(other)
        assert bool((filled(2) == 1).all())
        (said,) = [text for text in caplog.messages if "plug-in" in text]
        assert said.startswith(
            "the code of plug-in edited has changed since the private daemon of this process started"
        )
    assert bool((filled(3) == 3).all())


def test_a_daemon_with_a_broken_plugin_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import nothing_of_the_kind")
    run = str(tmp_path / "run")
    ended = cli("start", "--workers", "1", "--runtime-dir", run, "--plugin", "broken", **path_with(tmp_path))
    assert ended.returncode == 2
    last = ended.stderr.splitlines()[-1]
    assert last.startswith(
        "prepserver start: plug-in 'broken' cannot be imported: ModuleNotFoundError: No module named"
    )
    assert "broken.py, line 1" in last


def test_code_that_changed_is_another_stream(tmp_path: Path, new_server: Callable[..., Server]) -> None:
    """Workers keep the code with which the daemon was started, also new ones; the next daemon has the new code."""
    code = tmp_path / "changing.py"
    code.write_text("def level(image, rng):\n    image[:] = 10\n    return image\nprepserver_ops = {'level': level}\n")
    server = new_server(workers=2, arguments=["--plugin", "changing"], env=path_with(tmp_path))
    before = server.status()["plugins"][0]["code"]
    assert before in server.log()
    spec: dict[str, Any] = {"batch_size": 4, "runtime_dir": server.runtime_dir}
    client = PrepClient(MANY, [CenterCrop(8), PluginOp("level")], **spec)
    batches = iter(client)
    assert_level(10, [next(batches)])
    code.write_text(code.read_text().replace("= 10", "= 20"))
    for pid in server.workers():
        os.kill(pid, 9)
    server.wait_up()
    assert_level(10, [next(batches) for _ in range(8)])
    state = client.state_dict()
    server.process.kill()
    server.process.wait(PATIENCE_S)
    server.start()
    assert server.status()["plugins"][0]["code"] != before
    with client, pytest.raises(SourceChanged, match="the code of a plug-in has changed"):
        assert_level(10, batches)  # those that were ready
    with PrepClient(MANY, [CenterCrop(8), PluginOp("level")], **spec) as resumed:
        resumed.load_state_dict(state)
        with pytest.raises(SourceChanged, match="the code of a plug-in has changed"):
            next(iter(resumed))
    with PrepClient(MANY, [CenterCrop(8), PluginOp("level")], **spec) as restarted:
        restarted.set_epoch(state["epoch"])
        assert_level(20, [next(iter(restarted))])
    pinned = PrepClient(MANY, [CenterCrop(8), PluginOp("level", code=before)], **spec)
    with pinned, pytest.raises(InvalidSpec, match="is not the code that is loaded"):
        len(pinned)


def test_a_new_zygote_with_other_code_ends_the_daemon(tmp_path: Path, new_server: Callable[..., Server]) -> None:
    code = tmp_path / "changing.py"
    code.write_text("def level(image, rng):\n    return image\nprepserver_ops = {'level': level}\n")
    server = new_server(workers=1, arguments=["--plugin", "changing"], env=path_with(tmp_path))
    workers = server.workers()
    os.kill(server.zygote, 9)
    wait_until(lambda: server.workers() not in ([], workers), why=server.log)
    code.write_text(code.read_text().replace("return", "return 1 *"))
    os.kill(server.zygote, 9)
    assert server.process.wait(PATIENCE_S) == 1
    assert "the files of plug-ins have changed since this daemon was started" in server.log()


def test_nothing_is_loaded_for_being_installed(tmp_path: Path, new_server: Callable[..., Server]) -> None:
    """An installed distribution offers two plug-ins; the one that is named is loaded, with its version."""
    (tmp_path / "offered.py").write_text("def one(image, rng):\n    return image\n")
    (tmp_path / "unwanted.py").write_text("raise RuntimeError('imported')\n")
    meta = tmp_path / "offers-1.5.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: offers\nVersion: 1.5\n")
    (meta / "RECORD").write_text("offered.py,,\nunwanted.py,,\n")
    (meta / "entry_points.txt").write_text("[prepserver.ops]\nfirst = offered:one\nsecond = unwanted:two\n")
    server = new_server(workers=1, arguments=["--plugin", "first"], env=path_with(tmp_path))
    (loaded,) = server.status()["plugins"]
    assert (loaded["role"], loaded["name"]) == ("op", "first")
    assert loaded["origin"].startswith("offers==1.5, ")
    ops = [CenterCrop(8), PluginOp("first")]
    with PrepClient(SyntheticImages(4, 16), ops, runtime_dir=server.runtime_dir) as client:
        assert next(iter(client))[0].shape == (1, 3, 8, 8)


def test_a_plugin_reads_what_the_settings_name(tmp_path: Path, new_server: Callable[..., Server]) -> None:
    (tmp_path / "reads.py").write_text(
        "import numpy as np\nfrom pathlib import Path\n"
        "class Files:\n"
        "    def __init__(self, path, count=3):\n"
        "        self.path = path\n"
        "        self.count = count\n"
        "        if count == -1: self.count = len(list(Path(path).parent.glob('*')))\n"
        "        if count == -2: self.count = len(open(path, 'rb').read())\n"
        "    def __len__(self): return self.count\n"
        "    def __getitem__(self, index): return {'x': np.frombuffer(open(self.path, 'rb').read(4), np.uint8)}\n"
    )
    for folder in ("open", "closed"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_bytes(b"abcd")
    more = ["--plugin", "reads:Files", "--plugin-read", str(tmp_path / "open")]
    server = new_server(workers=1, arguments=more, env=path_with(tmp_path))
    if "landlock" not in server.status()["sandbox"]["parts"]:
        pytest.skip("no Landlock here")
    columns = {"x": kinds.Array((4,), "uint8")}
    for folder in ("open", "closed"):
        source = Plugin("Files", path=str(tmp_path / folder / "file"), columns=columns)
        with PrepClient(source, [], runtime_dir=server.runtime_dir) as client:
            if folder == "open":
                (x,) = next(iter(client))
                assert bytes(x[0].tolist()) == b"abcd"
            else:
                with pytest.raises(BadSampleError, match=r"PermissionError.*only the folders of \[plugins\] read"):
                    next(iter(client))
    closed = str(tmp_path / "closed" / "file")
    for count, said in ((-1, "has 0 samples. The daemon"), (-2, "cannot be made: PermissionError")):
        source = Plugin("Files", path=closed, count=count, columns=columns)
        with (
            PrepClient(source, [], runtime_dir=server.runtime_dir) as client,
            pytest.raises(SourceUnavailable, match=rf"{said}.*only the folders of \[plugins\] read"),
        ):
            len(client)


def test_audit_and_replay_of_plugins(owned: Server, tmp_path: Path) -> None:
    spec = SPEC | {"runtime_dir": owned.runtime_dir, "job": "replayed"}
    with PrepClient(SOURCE, OPS, **spec) as client:
        batches = list(client)
    await_logged(owned)
    place = ("--cache-dir", str(owned.home / "cache"))
    assert forked.cli("audit", "replayed", *place).returncode == 0
    made = ("replay", "--job", "replayed", "--batch", "1", "--row", "2", "-o", str(tmp_path / "row.npy"), *place)
    ended = forked.cli(*made, "--plugin", "owner_code", **path_with(OWNER))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert np.array_equal(np.load(tmp_path / "row.npy"), batches[1][0][2].permute(1, 2, 0).numpy())
    shutil.copy(OWNER / "owner_code.py", tmp_path)
    code = tmp_path / "owner_code.py"
    code.write_text(code.read_text() + "# another\n")
    assert "has changed" in forked.cli(*made, "--plugin", "owner_code", **path_with(tmp_path)).stderr
    assert "'numbers' is not loaded in this process: name it with --plugin" in forked.cli(*made).stderr


def test_replay_is_of_the_last_run_with_whatever_code(tmp_path: Path, new_server: Callable[..., Server]) -> None:
    code = tmp_path / "rewritten.py"
    text = (
        "class Data:\n    def __len__(self): return 4\n    def __getitem__(self, index): return [[{0}, {0}], index]\n"
        "def more(x, rng): return x + {0}\n"
        "prepserver_sources, prepserver_ops = {{'data': Data}}, {{'more': more}}\n"
    )
    code.write_text(text.format(1))
    server = new_server(arguments=["--plugin", "rewritten"], env=path_with(tmp_path))
    pair = kinds.Array((2,), "int64")
    source = Plugin("data", columns={"x": pair, "label": kinds.Label()})
    for value in (1, 10):
        if value != 1:
            server.process.kill()
            server.process.wait(PATIENCE_S)
            code.write_text(text.format(value))
            server.start()
        ops = [PluginOp("more", column="x", returns=pair)]
        with PrepClient(source, ops, batch_size=4, job="edited", runtime_dir=server.runtime_dir) as client:
            list(client)
        await_logged(server)
    place = ("--cache-dir", str(server.home / "cache"), "--plugin", "rewritten")
    made = ("replay", "--job", "edited", "--batch", "0", "-o", str(tmp_path / "x.npy"), *place)
    assert forked.cli(*made, **path_with(tmp_path)).stderr == ""
    assert np.load(tmp_path / "x.npy").tolist() == [20, 20]
    assert "has changed" in forked.cli(*made, "--training", "0", **path_with(tmp_path)).stderr


@pytest.mark.parametrize("name", sorted(path.name for path in (REPOSITORY / "examples").glob("plugin_*.py")))
def test_examples_run(name: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, str(REPOSITORY / "examples" / name)], env=environment(XDG_RUNTIME_DIR=str(tmp_path)),
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    busy = ("waiting up to", "Verdict: ")  # what is said on a busy machine
    said = [line for line in ended.stderr.splitlines() if not line.startswith(busy)]
    assert (ended.returncode, said) == (0, [])
    assert ended.stdout
