"""A rebuild changes nothing that users see, or says what in git."""

import pytest

from tests.golden.snapshots import EXPECTED, FILES


@pytest.mark.parametrize("name", FILES)
def test_users_see_what_they_saw(name):
    assert FILES[name]().rstrip().splitlines() == (EXPECTED / name).read_text("utf-8").splitlines()
