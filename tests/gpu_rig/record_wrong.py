"""Record what the GPU plugin computes wrong: ``python -m tests.gpu_rig.record_wrong [DIRECTORY]``.

The recording in ``datasets/recordings`` was made by this, on the rig. It is what the course shows
where there is no GPU.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.gpu_rig import rig

ROOT = Path(__file__).resolve().parents[2]
RECORDING = ROOT / "datasets" / "recordings" / "gpu_plugin_digits_inception"


def main(directory: Path) -> None:
    """Search, and write what was found."""
    with tempfile.TemporaryDirectory() as build:
        rig.start(build)
        import hetero_lab as hl
        from tests.scripts import alone

        model = hl.load("digits_inception")
        placement = replace(alone(model, "GPU"), label="GPU in f32")
        wrong = hl.find_wrong(model, placement, budget_s=None, progress=False)
        print(wrong)
        shutil.rmtree(directory, ignore_errors=True)
        # The host's name says nothing that the devices' names do not.
        replace(wrong, environment=replace(wrong.environment, host="")).export(directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else RECORDING)
