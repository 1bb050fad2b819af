"""What ``hetero-lab classify`` does with its options: OpenVINO's classification sample."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import hetero_lab as hl
from hetero_lab.cli import commands, options
from hetero_lab.errors import ArgumentError, shorten

if TYPE_CHECKING:
    from hetero_lab.experiments.accuracy.classify import Classification


def add_classify_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``hetero-lab classify``."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="a sample's name or the path of a model file")
    add("image", metavar="IMAGE", help="a PNG, JPEG, BMP, GIF, WebP, TIFF or PPM file")
    add("-d", "--device", metavar="DEVICE", help="HETERO:GPU,CPU or one device")
    add("-k", "--top", type=int, default=5, metavar="N", help="best classes shown (%(default)s)")
    add("-pc", "--counters", action="store_true", help="show the counters of each subgraph")
    add(
        "--mean",
        metavar="M[,M,M]",
        help="the input is (pixel - mean) / scale, pixels being 0 to 255; one number or three in "
        "the model's order of channels (a sample's own, else 0)",
    )
    add("--scale", metavar="S[,S,S]", help="see --mean (a sample's own, else 1)")
    add("--bgr", action="store_true", default=None, help="the model's first channel is blue")
    options.add_shape_option(parser)
    options.add_property_option(parser)
    options.add_affinity_options(parser)
    add("--csv", metavar="FILE", help="write the classes as CSV")
    add("-q", "--quiet", action="store_true", help="show nothing")


def run_classify(
    given: argparse.Namespace, defaults: Mapping[str, Mapping[str, Any]] | None = None
) -> Classification:
    """Classify as the options say, after which the classes are written to ``--csv``."""
    from hetero_lab.model.read import prepare

    commands.check_targets(files=[given.csv], directories=[])
    prepared = prepare(given.model, options.shapes(given.shape))
    result = hl.classify(
        prepared,
        given.image,
        commands.placement_of(given, prepared, defaults=defaults),
        top=given.top,
        sample=given.model,
        mean=_numbers(given.mean, "--mean"),
        scale=_numbers(given.scale, "--scale"),
        bgr=given.bgr,
        counters=given.counters,
    )
    if given.csv is not None:
        result.to_csv(given.csv)
    return result


def _numbers(text: str | None, option: str) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ArgumentError(
            f"{option} {shorten(text)} is not a number or three: {option} 123.7,116.3,103.5."
        ) from error
