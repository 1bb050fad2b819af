"""Models for a real device: samples, files, and networks of torchvision with random weights."""

from __future__ import annotations

from pathlib import Path

# What a GPU that is not Intel's compiles and computes right; the last three need torchvision.
NETWORKS = (
    "page_orientation", "magika", "ppocr_det", "digits_inception", "googlenet_graph",
    "torchvision:resnet18", "torchvision:squeezenet1_1", "torchvision:shufflenet_v2_x1_0",
)  # fmt: skip


def model_file(name: str, directory: Path) -> str:
    """Return what ``load`` takes: a path or a sample's name.

    ``torchvision:NAME`` is that network with random weights (seed 0), exported to ONNX here, for
    which torch, torchvision and onnx have to be installed. ``mixed:NAME`` is one that
    :mod:`tests.real_gpu.mixed_networks` builds.
    """
    source, _, network = name.partition(":")
    if source == "mixed":
        return _built(network, directory)
    if source != "torchvision" or not network:
        return name
    path = directory / f"{network}.onnx"
    if not path.exists():
        import torch
        import torchvision

        torch.manual_seed(0)
        model = getattr(torchvision.models, network)(weights=None).eval()
        for weights in model.parameters():
            if weights.ndim > 1 and not weights.any():  # a head that starts at 0 tells nothing
                torch.nn.init.normal_(weights, std=0.02)
        # The older exporter needs no onnxscript.
        example = torch.zeros(1, 3, 224, 224)
        torch.onnx.export(model, (example,), str(path), input_names=["x"], dynamo=False)
    return str(path)


def _built(network: str, directory: Path) -> str:
    import openvino as ov

    from tests.real_gpu.mixed_networks import build

    path = directory / f"{network}.xml"
    if not path.exists():
        ov.save_model(build(network), path, compress_to_fp16=False)
    return str(path)


def short_name(name: str) -> str:
    """Return what a model is called in tables and files."""
    return Path(name.rpartition(":")[2]).stem
