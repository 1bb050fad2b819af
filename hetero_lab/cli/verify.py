"""What ``hetero-lab verify`` does with its options: call the library."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import hetero_lab as hl

if TYPE_CHECKING:
    from hetero_lab.experiments.deployment.releases import Across
    from hetero_lab.experiments.deployment.verify import Verification


def add_verify_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``hetero-lab verify``."""
    add = parser.add_argument
    add("directory", metavar="DIRECTORY", help="what hetero_lab.freeze or advice.deploy wrote")
    add(
        "--across",
        metavar="openvino==2026.2,2026.3",
        help="verify with each of these releases, in environments that pip makes and keeps, and "
        "name the one that changed it",
    )
    add(
        "--slower",
        type=float,
        default=0.1,
        metavar="SHARE",
        help="how much worse the latency may be, relative to the reference (%(default)s)",
    )
    add("-q", "--quiet", action="store_true", help="show nothing")


def run_verify(given: argparse.Namespace) -> Verification | Across:
    """Verify as the options say."""
    if given.across is None:
        return hl.verify(given.directory, slower=given.slower)
    releases = [part.strip() for part in given.across.removeprefix("openvino==").split(",")]
    return hl.verify_across(
        given.directory, releases, slower=given.slower, progress=not given.quiet
    )
