"""The public reports that show on the installed release are found; the others need the network."""

import pytest

from tests.proof.replays.environments import is_installed
from tests.proof.replays.replay import replayed
from tests.proof.replays.reports import REPORTS

HERE = [each for each in REPORTS if each.device == "CPU" and is_installed(each.release)]


@pytest.mark.parametrize("report", HERE, ids=lambda report: report.name)
def test_a_report_is_reduced_and_its_script_shows_it(report, tmp_path):
    row, is_good = replayed(report, tmp_path, tmp_path, offline=True)
    assert is_good, row
