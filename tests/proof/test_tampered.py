"""Tampered files are refused: nothing runs, nothing is written, nothing hangs or floods."""

import os

import pytest

from tests.proof.tampered import cases, fault_of, honest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="links, pipes and rusage are POSIX's"),
]

# Every third one in CI.
_CASES = [
    pytest.param(case, marks=[pytest.mark.by_hand] * (number % 3 > 0))
    for number, case in enumerate(cases())
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    at = tmp_path_factory.mktemp("honest")
    honest(at)
    return at


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case.name)
def test_a_tampered_file_is_refused(case, made):
    assert fault_of(case, made) == ""
