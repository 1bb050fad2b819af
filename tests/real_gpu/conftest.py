"""The lab on the GPUs that OpenVINO lists here: ``python -m pytest tests/real_gpu``.

What the plugin itself computes wrong is reported at the end, and fails no test: it was shown to
happen with openvino alone.
"""

from __future__ import annotations

import json

import openvino as ov
import pytest

_RECORDED = "fault of the plugin"


def gpus() -> list[str]:
    """Return the GPUs here, as they are listed."""
    return [name for name in ov.Core().available_devices if name.split(".")[0] == "GPU"]


def pytest_generate_tests(metafunc):
    if "gpu" in metafunc.fixturenames:
        why = pytest.mark.skip(reason="OpenVINO lists no GPU here")
        metafunc.parametrize("gpu", gpus() or [pytest.param("GPU", marks=why)], scope="module")


@pytest.fixture
def report_fault(record_property):
    """Return what takes a sentence about a wrong kernel of the plugin."""
    return lambda said: record_property(_RECORDED, said)


def pytest_terminal_summary(terminalreporter):
    said = [
        (report.nodeid, value)
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, value in report.user_properties
        if name == _RECORDED
    ]
    if said:
        terminalreporter.section("faults of the plugin, shown with openvino alone")
        for nodeid, value in said:
            terminalreporter.write_line(f"{nodeid}: {json.dumps(value)}")
