"""Environments with releases of OpenVINO: made by pip, kept, removed when the disk is short."""

from __future__ import annotations

import os
import sys

import pytest
from filelock import FileLock
from slow_index import disk_of

from hetero_lab.devices import releases
from hetero_lab.devices.releases import interpreter, known_releases, without_zeros
from hetero_lab.errors import MeasurementError, OutputPathError


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HETERO_LAB_CACHE", os.fspath(tmp_path))
    return tmp_path / "releases"


def made(directory, *names: str) -> None:
    """Make directories as environments, each used later than the one before."""
    for time, name in enumerate(names, start=1):
        (directory / name).mkdir(parents=True)
        (directory / name / "ready").touch()
        os.utime(directory / name / "ready", (time, time))


def names_in(directory) -> set[str]:
    return {path.name for path in directory.iterdir() if path.is_dir()}


def test_a_release_has_one_name():
    assert {without_zeros(name) for name in ("2026", "2026.0", "2026.0.0")} == {"2026"}
    assert {without_zeros(name) for name in ("2025.4", "2025.4.0")} == {"2025.4"}
    assert without_zeros("2025.10") == "2025.10"


def test_an_environment_is_made_once(directory):
    made(directory, "openvino-2025.4")
    (directory / "openvino-2025.4" / "bin").mkdir()
    (directory / "openvino-2025.4" / "bin" / "python").symlink_to(sys.executable)
    for name in ("2025.4", "2025.4.0"):
        with interpreter(name) as python:
            assert python.startswith(os.fspath(directory / "openvino-2025.4"))
    assert (directory / "openvino-2025.4" / "ready").stat().st_mtime > 1


@pytest.mark.parametrize("python_is_gone", [True, False])
def test_what_cannot_be_installed_leaves_nothing(directory, monkeypatch, python_is_gone):
    if python_is_gone:
        made(directory, "openvino-2099.1")  # it is to be made anew
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(MeasurementError, match=r"2099\.1 cannot be installed.*2099\.1"):
        interpreter("2099.1").__enter__()
    assert names_in(directory) == set()


def test_the_least_used_environments_make_room(directory, monkeypatch):
    made(directory, "openvino-2", "openvino-1", "openvino-3")
    free = iter([0, 0, 0, 10**10, 10**10])
    monkeypatch.setattr(
        releases.shutil, "disk_usage", lambda _: releases.shutil._ntuple_diskusage(0, 0, next(free))
    )
    (directory / "openvino-4").mkdir()  # not finished
    with FileLock(directory / "openvino-2.lock"):  # in use
        releases._make_room(directory)
    assert names_in(directory) == {"openvino-2", "openvino-3"}


def test_without_room_the_error_says_where(directory, monkeypatch):
    monkeypatch.setattr(releases, "_N_BYTES", 10**20)
    made(directory, "openvino-1")
    with pytest.raises(OutputPathError, match=r"no space left.*HETERO_LAB_CACHE"):
        interpreter("2025.4").__enter__()
    assert names_in(directory) == set()


@pytest.mark.network
def test_a_disk_that_fills_up_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(releases, "_N_BYTES", 0)
    with disk_of(tmp_path / "disk", "9m") as disk:
        monkeypatch.setenv("HETERO_LAB_CACHE", os.fspath(disk))
        with pytest.raises(OutputPathError, match="no space left"):
            interpreter("2025.4").__enter__()
        assert names_in(disk / "releases") == set()


@pytest.mark.network
def test_pip_lists_the_releases_in_order():
    known = known_releases()
    assert known.index("2025.4.0") < known.index("2025.4.1") < known.index("2026.0.0")
