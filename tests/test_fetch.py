"""Fetching: real wheels, real pip, an index on this machine; killed, full, wrong and offline."""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import platformdirs
import pytest
from slow_index import SlowIndex, disk_of, make_wheel, only_from

from hetero_lab import fetch as fetching
from hetero_lab.errors import SampleError
from hetero_lab.fetch import Member, Wheel, cached_path, fetch

MODEL = bytes(range(256)) * 4096  # 1 MiB
CONFIG = b'{"classes": ["a", "b"]}'
ENOUGH_S = 240  # for pip to begin and to end, on a busy machine


def kept(cache: Path) -> list[str]:
    """Return all files and directories of a cache but the lock."""
    return sorted(str(p.relative_to(cache)) for p in cache.rglob("*") if p.name != ".lock")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "cache"
    monkeypatch.setenv("HETERO_LAB_CACHE", str(directory))
    return directory


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "links"
    directory.mkdir()
    only_from(monkeypatch, directory)
    return directory


@pytest.fixture
def wheel(links: Path) -> Wheel:
    return make_wheel(links, {"labtoy/model.onnx": MODEL, "labtoy/config.json": CONFIG})


@pytest.fixture
def by_hand(cache: Path, wheel: Wheel, links: Path) -> Wheel:
    """A wheel that lies where the message says to put it, for what comes after pip."""
    (cache / "wheels").mkdir(parents=True)
    shutil.move(links / wheel.file_name, cache / "wheels")
    return wheel


def test_all_members_are_kept_and_fetched_once_with_a_bar_if_that_is_slow(
    cache, wheel, links, capfd, monkeypatch
):
    monkeypatch.setattr(fetching, "QUIET_S", 3600.0)
    path = fetch(wheel, wheel.members[0])
    assert "labtoy 1.0:" not in capfd.readouterr().err  # no bar of a quick download
    assert path == cache / "labtoy-1.0" / "model.onnx"
    assert path.read_bytes() == MODEL
    assert kept(cache) == ["labtoy-1.0", "labtoy-1.0/config.json", "labtoy-1.0/model.onnx"]
    monkeypatch.setattr(fetching, "QUIET_S", 0.0)
    shutil.rmtree(cache)
    fetch(wheel, wheel.members[0])
    output, errors = capfd.readouterr()
    assert (output, "labtoy 1.0:" in errors) == ("", True)
    shutil.rmtree(links)
    assert fetch(wheel, wheel.members[1]).read_bytes() == CONFIG


def test_a_broken_cached_file_is_fetched_again(by_hand):
    path = fetch(by_hand, by_hand.members[0])
    path.write_bytes(b"x" + MODEL[1:])
    assert fetch(by_hand, by_hand.members[0]).read_bytes() == MODEL


@pytest.mark.parametrize(
    "changed",
    [
        {"sha256": "0" * 64},
        {"n_bytes": len(MODEL) // 2},  # more comes out of the wheel than there should be
    ],
)
def test_a_wrong_file_leaves_nothing(cache, by_hand, changed):
    before = kept(cache)
    right = by_hand.members[0]
    wrong = replace(right, **changed)
    wrong_wheel = replace(by_hand, members=(by_hand.members[1], wrong))
    with pytest.raises(SampleError, match="not the file it should be"):
        fetch(wrong_wheel, wrong)
    assert kept(cache) == before == ["wheels", f"wheels/{by_hand.file_name}"]
    path = fetch(by_hand, right)
    with pytest.raises(SampleError, match="not the file it should be"):
        fetch(wrong_wheel, replace(wrong, sha256="0" * 64))
    assert path.read_bytes() == MODEL  # not replaced


def test_a_missing_member_and_a_broken_wheel(cache, by_hand):
    missing = replace(by_hand.members[0], path="labtoy/other.onnx")
    with pytest.raises(SampleError, match=r"it has no sound labtoy/other\.onnx"):
        fetch(replace(by_hand, members=(missing,)), missing)
    (cache / "wheels" / by_hand.file_name).write_bytes(b"not a wheel")
    with pytest.raises(SampleError, match="not the wheel it should be"):
        fetch(by_hand, by_hand.members[0])
    assert kept(cache) == ["wheels", f"wheels/{by_hand.file_name}"]


def test_offline_the_message_tells_what_to_do_and_doing_it_helps(
    cache, wheel, links, tmp_path, monkeypatch
):
    only_from(monkeypatch, None)
    with pytest.raises(SampleError) as raised:
        fetch(wheel, wheel.members[0])
    message = str(raised.value)
    assert "pip could not download labtoy 1.0 (No matching distribution found" in message
    assert kept(cache) == []

    found = re.search(r"`python -m (pip [^`]+)`; then put (\S+) into (\S+) and", message)
    assert found is not None
    command, file_name, directory = found.groups()
    only_from(monkeypatch, links)  # "where there is a network"
    subprocess.run(
        [sys.executable, "-m", *command.split()], cwd=tmp_path, check=True, capture_output=True
    )
    only_from(monkeypatch, None)
    Path(directory).mkdir(parents=True)
    shutil.copy(tmp_path / file_name, directory)
    assert fetch(wheel, wheel.members[0]).read_bytes() == MODEL


def test_an_index_that_cannot_be_reached(cache, wheel, monkeypatch):
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody listens there
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(SampleError, match=r"index could not be reached.*By hand"):
        fetch(wheel, wheel.members[0])
    assert kept(cache) == []


def test_the_same_file_of_the_installed_package_is_copied(cache, links, monkeypatch):
    installed = Path(str(importlib.metadata.distribution("pytest").locate_file("pytest/py.typed")))
    content = installed.read_bytes()
    member = Member("pytest/py.typed", hashlib.sha256(content).hexdigest(), len(content))
    wheel = Wheel("pytest", "0.1", "pytest-0.1-py3-none-any.whl", 1, (member,))
    assert fetch(wheel, member).read_bytes() == content
    other = replace(member, sha256="0" * 64)
    with pytest.raises(SampleError, match=r"pip could not download pytest 0\.1"):
        fetch(replace(wheel, members=(other,)), other)


def test_python_without_pip(cache, wheel, monkeypatch):
    bare = cache.parent / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    folder, program = ("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")
    monkeypatch.setattr(sys, "executable", str(bare / folder / program))
    with pytest.raises(SampleError, match=r"has no pip.*By hand"):
        fetch(wheel, wheel.members[0])
    monkeypatch.setattr(sys, "executable", str(bare / "no_such_program"))
    with pytest.raises(SampleError, match="no Python interpreter"):
        fetch(wheel, wheel.members[0])
    assert kept(cache) == []


def test_a_cache_that_cannot_be_written(wheel, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HETERO_LAB_CACHE", str(tmp_path / "file"))
    with pytest.raises(SampleError, match=r"cannot be written.*HETERO_LAB_CACHE") as raised:
        fetch(wheel, wheel.members[0])
    assert isinstance(raised.value.__cause__, OSError)


def test_one_wheel_for_every_machine_and_where_it_is_kept(monkeypatch):
    name = "toy-1.0-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl"
    arguments = " ".join(Wheel("toy", "1.0", name, 1, ()).pip_arguments)
    assert arguments == (
        "download --no-deps --only-binary :all: --implementation cp --python-version 3.11 "
        "--platform manylinux_2_27_x86_64 --platform manylinux_2_28_x86_64 toy==1.0"
    )
    monkeypatch.setenv("HETERO_LAB_CACHE", "some/where")
    assert fetching.cache_dir() == Path.cwd() / "some/where"
    monkeypatch.delenv("HETERO_LAB_CACHE")
    assert fetching.cache_dir() == platformdirs.user_cache_path("hetero_lab", appauthor=False)


# A full disk ------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file system of 3 MB that holds the cache."""
    with disk_of(tmp_path / "disk", "3m") as disk:
        monkeypatch.setenv("HETERO_LAB_CACHE", str(disk))
        yield disk


def test_a_disk_too_small_is_known_before_the_download(small_disk, links, monkeypatch):
    wheel = make_wheel(links, {"labtoy/model.onnx": MODEL * 2})
    only_from(monkeypatch, None)  # pip would fail in another way
    with pytest.raises(SampleError, match=r"no space left.*HETERO_LAB_CACHE"):
        fetch(wheel, wheel.members[0])
    assert kept(small_disk) == []


@pytest.mark.parametrize("n_mib", [2, 8])  # it fits once, not twice; it does not fit at all
def test_a_disk_that_fills_up_leaves_nothing(small_disk, links, monkeypatch, n_mib):
    wheel = make_wheel(links, {"labtoy/model.onnx": MODEL * n_mib})
    monkeypatch.setattr(fetching, "check_space", lambda wheel: None)
    with pytest.raises(SampleError, match=r"no space left.*HETERO_LAB_CACHE") as raised:
        fetch(wheel, wheel.members[0])
    assert isinstance(raised.value.__cause__, OSError)
    assert raised.value.__cause__.errno == errno.ENOSPC
    assert kept(small_disk) == []


# A slow index -----------------------------------------------------------------------------------


@pytest.fixture
def index(wheel: Wheel, links: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowIndex]:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with SlowIndex(links / wheel.file_name) as slow:
        monkeypatch.setenv("PIP_INDEX_URL", slow.url)
        yield slow


def start_fetch(wheel: Wheel) -> subprocess.Popen[str]:
    """Fetch in another process, the leader of a new process group."""
    script = f"""
        from hetero_lab.fetch import Member, Wheel, fetch
        wheel = {wheel!r}
        print(fetch(wheel, wheel.members[0]))
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_group(leader: int) -> None:
    """Wait until no process of a group is left."""
    until = time.monotonic() + ENOUGH_S
    while time.monotonic() < until:
        try:
            os.killpg(leader, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("a process of the fetch is still running")


needs_groups = pytest.mark.skipif(
    os.name == "nt", reason="Windows has no process groups to wait for"
)


@pytest.mark.slow
@needs_groups
def test_killed_in_the_middle(cache, wheel, index):
    process = start_fetch(wheel)
    assert index.half_sent.wait(ENOUGH_S)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not cached_path(wheel, wheel.members[0]).exists()
    assert [name for name in kept(cache) if "model.onnx" in name] == []

    # pip may live on for a while; it must not get in the way of the next fetch.
    path = fetch(wheel, wheel.members[0])
    assert path.read_bytes() == MODEL
    index.go_on.set()
    wait_for_group(process.pid)
    assert fetch(wheel, wheel.members[0]).read_bytes() == MODEL
    assert kept(cache) == ["labtoy-1.0", "labtoy-1.0/config.json", "labtoy-1.0/model.onnx"]


@needs_groups
def test_ctrl_c_ends_pip_too_and_leaves_nothing(cache, wheel, index):
    process = start_fetch(wheel)
    assert index.half_sent.wait(ENOUGH_S)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=ENOUGH_S)
    assert "KeyboardInterrupt" in errors
    wait_for_group(process.pid)
    assert kept(cache) == []


@needs_groups
def test_a_second_process_waits_for_the_first_one(cache, wheel, index):
    processes = [start_fetch(wheel), start_fetch(wheel)]
    assert index.half_sent.wait(ENOUGH_S)
    time.sleep(0.5)
    index.go_on.set()
    for process in processes:
        output, errors = process.communicate(timeout=ENOUGH_S)
        assert process.returncode == 0, errors
        assert Path(output.strip()).read_bytes() == MODEL
    assert index.n_wheels_asked_for == 1
