"""A notebook, converted by nbconvert to a page that needs neither a kernel nor a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from hetero_lab.samples.catalogue import datasets_dir

pytestmark = pytest.mark.browser

RECORDED = datasets_dir() / "recordings" / "digits_inception_emulated"
CELLS = (
    "%load_ext hetero_lab\nimport hetero_lab as hl",
    f"profile = hl.read_profile({str(RECORDED / 'profile')!r})\nhl.views.placement_graph(profile)",
    f"hl.views.latency_ranking(hl.read_sweep({str(RECORDED / 'sweep')!r}))",
)


def test_every_figure_is_in_the_page(tmp_path: Path, browser):
    pytest.importorskip("kaleido", reason="figures are converted with the extra pictures")
    path = tmp_path / "figures.ipynb"
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    subprocess.run(
        [sys.executable, "-m", "nbconvert", path.name, "--to=html", "--execute"],
        check=True, cwd=tmp_path, timeout=240, capture_output=True,
        env={name: value for name, value in os.environ.items() if name != "PLOTLY_RENDERER"},
    )  # fmt: skip
    page = browser.new_context(offline=True).new_page()
    page.goto(path.with_suffix(".html").as_uri())
    sizes = page.locator(".jp-OutputArea-output img").evaluate_all(
        "images => images.map(image => [image.complete, image.naturalWidth])"
    )
    page.context.close()
    assert len(sizes) == 2
    assert all(is_drawn and width >= 1000 for is_drawn, width in sizes)
