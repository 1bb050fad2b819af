from __future__ import annotations

import numpy as np

from hetero_lab.devices.devices import peak_bytes, reset_peak


def test_the_peak_holds_what_was_used_in_between():
    anew = reset_peak()
    assert isinstance(anew, bool)
    before = peak_bytes()
    assert before > 1_000_000
    used = np.ones(50_000_000, np.uint8)
    assert used.sum() == 50_000_000
    del used
    # Where the peak counts since the start of the process, it may have been higher already.
    assert peak_bytes() - before > (40_000_000 if anew else -1)
