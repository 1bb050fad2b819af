"""Train `digits_inception` and export it as an OpenVINO model.

The network is a small inception classifier of 8x8 handwritten digits with two heads: which
digit it is, and whether it is even or odd. PyTorch trains it; the OpenVINO model is then built
op by op from the trained weights, with batch normalisation folded into the convolutions, so
that every node has a readable name. In each class below, `forward` (PyTorch) and `build`
(OpenVINO) stand side by side and compute the same thing.

Run it from anywhere::

    python train_digits_inception.py [--directory DIR]

It writes `digits_split.json`, `digits_inception.xml` and `digits_inception.bin`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import openvino as ov
import torch
from openvino import opset1 as op, opset11
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional

SEED = 2026
EPOCHS = 80
BATCH_SIZE = 50
N_CALIBRATION = 200
N_TRAIN = 1000
PIXEL_MAX = 16.0
WORKING_SIZE = [16, 16]  # a stroke is about two pixels wide: enlarged, it has an inside
PARITY_LOSS_WEIGHT = 0.5


def constant(values: np.ndarray | list | float, name: str, dtype: type = np.float32) -> ov.Node:
    """Return a named constant."""
    node = op.constant(np.asarray(values, dtype=dtype))
    node.set_friendly_name(name)
    return node


class ConvUnit(nn.Module):
    """Convolution, batch normalisation and ReLU; the spatial size is kept unless `stride` > 1."""

    def __init__(self, n_in: int, n_out: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.stride, self.pad = stride, kernel // 2
        self.conv = nn.Conv2d(n_in, n_out, kernel, stride, self.pad, bias=False)
        self.norm = nn.BatchNorm2d(n_out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.norm(self.conv(x)))

    def folded(self) -> tuple[np.ndarray, np.ndarray]:
        """Return weights [out, in, k, k] and bias [1, out, 1, 1] with the norm folded in."""
        mean, variance = self.norm.running_mean, self.norm.running_var
        assert mean is not None and variance is not None
        # In f64, so that folding itself adds no rounding error.
        gain = self.norm.weight.double() / torch.sqrt(variance.double() + self.norm.eps)
        weights = self.conv.weight.double() * gain.reshape(-1, 1, 1, 1)
        bias = self.norm.bias.double() - mean.double() * gain
        return weights.detach().numpy(), bias.detach().numpy().reshape(1, -1, 1, 1)

    def build(self, x: ov.Node, name: str) -> ov.Node:
        weights, bias = self.folded()
        strides, pads = [self.stride] * 2, [self.pad] * 2
        kernel = constant(weights, f"{name}/conv/weights")
        x = op.convolution(x, kernel, strides, pads, pads, [1, 1], name=f"{name}/conv")
        x = op.add(x, constant(bias, f"{name}/bias/values"), name=f"{name}/bias")
        return op.relu(x, name=f"{name}/relu")


class Pool(nn.Module):
    """A 3x3 window, padded by 1: `kind` "max" or "avg" (padding not counted)."""

    def __init__(self, kind: str, stride: int = 1) -> None:
        super().__init__()
        self.kind, self.stride = kind, stride

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "max":
            return functional.max_pool2d(x, 3, self.stride, 1)
        return functional.avg_pool2d(x, 3, self.stride, 1, count_include_pad=False)

    def build(self, x: ov.Node, name: str) -> ov.Node:
        strides, pads, window = [self.stride] * 2, [1, 1], [3, 3]
        name = f"{name}/{self.kind}pool"
        if self.kind == "max":
            return op.max_pool(x, strides, pads, pads, window, name=name)
        return op.avg_pool(x, strides, pads, pads, window, exclude_pad=True, name=name)


class Chain(nn.ModuleDict):
    """Units by name, run one after the other."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for unit in self.values():
            x = unit(x)
        return x

    def build(self, x: ov.Node, prefix: str) -> ov.Node:
        for name, unit in self.items():
            x = unit.build(x, prefix + name)
        return x


class Mixed(nn.Module):
    """Parallel branches on one input, concatenated by channel; each is the units of a chain."""

    def __init__(self, *branches: dict[str, nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList([Chain(branch) for branch in branches])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)

    def build(self, x: ov.Node, name: str) -> ov.Node:
        outputs = [branch.build(x, f"{name}/") for branch in self.branches]
        return op.concat(outputs, 1, name=f"{name}/concat")


def mixed_5x5(n_in: int) -> Mixed:
    """Return the module of GoogLeNet (Szegedy et al., 2015): 80 channels out."""
    return Mixed(
        {"branch1x1": ConvUnit(n_in, 16, 1)},
        {"branch3x3_reduce": ConvUnit(n_in, 16, 1), "branch3x3": ConvUnit(16, 32, 3)},
        {"branch5x5_reduce": ConvUnit(n_in, 8, 1), "branch5x5": ConvUnit(8, 16, 5)},
        {"branch_pool": Pool("max"), "branch_pool_project": ConvUnit(n_in, 16, 1)},
    )


def mixed_double_3x3(n_in: int) -> Mixed:
    """Return the module of Inception v2 (Szegedy et al., 2016): 80 channels out."""
    return Mixed(
        {"branch1x1": ConvUnit(n_in, 16, 1)},
        {"branch3x3_reduce": ConvUnit(n_in, 16, 1), "branch3x3": ConvUnit(16, 32, 3)},
        {
            "branch3x3dbl_reduce": ConvUnit(n_in, 12, 1),
            "branch3x3dbl_1": ConvUnit(12, 16, 3),
            "branch3x3dbl_2": ConvUnit(16, 16, 3),
        },
        {"branch_pool": Pool("avg"), "branch_pool_project": ConvUnit(n_in, 16, 1)},
    )


def mixed_reduction(n_in: int) -> Mixed:
    """Return a module that halves the spatial size: `n_in` + 32 channels out."""
    return Mixed(
        {"branch3x3_reduce": ConvUnit(n_in, 12, 1), "branch3x3": ConvUnit(12, 16, 3, stride=2)},
        {
            "branch3x3dbl_reduce": ConvUnit(n_in, 12, 1),
            "branch3x3dbl_1": ConvUnit(12, 16, 3),
            "branch3x3dbl_2": ConvUnit(16, 16, 3, stride=2),
        },
        {"branch_pool": Pool("max", stride=2)},
    )


class DigitsInception(nn.Module):
    """The whole network: `image` [n, 1, 8, 8], pixels 0 to 16, in; logits of both heads out."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Chain(
            {
                "stem": ConvUnit(1, 24, 3),
                "mixed1": mixed_5x5(24),
                "mixed2": mixed_5x5(80),
                "mixed3": mixed_double_3x3(80),
                "mixed4": mixed_reduction(80),
            }
        )
        self.head_digit = nn.Linear(112, 10)
        self.head_parity = nn.Linear(112, 1)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the digit logits [n, 10] and the logit of being odd [n]."""
        x = functional.interpolate(image / PIXEL_MAX, size=WORKING_SIZE, mode="bilinear")
        features = self.body(x).mean(dim=(2, 3))
        return self.head_digit(features), self.head_parity(features).squeeze(1)

    def build(self) -> ov.Model:
        """Return the OpenVINO model: `image` in; `digit` [1, 10] and `parity` [1, 2] out."""
        image = op.parameter([1, 1, 8, 8], np.float32, name="image")
        image.output(0).set_names({"image"})
        x = op.multiply(image, constant(1 / PIXEL_MAX, "scale/factor"), name="scale")
        size = constant(WORKING_SIZE, "enlarge/size", np.int64)
        axes = constant([2, 3], "enlarge/axes", np.int64)
        x = opset11.interpolate(x, size, "linear_onnx", "sizes", axes=axes, name="enlarge")
        x = self.body.build(x, "")
        axes = constant([2, 3], "features/axes", np.int64)
        features = op.reduce_mean(x, axes, keep_dims=False, name="features")

        weights, bias = (p.detach().numpy() for p in self.head_digit.parameters())
        logits = build_linear(features, weights, bias, "head_digit")
        digit = op.softmax(logits, 1, name="head_digit/softmax")

        # sigmoid(-z) = 1 - sigmoid(z): with mirrored weights [even, odd] add up to 1.
        weights, bias = (p.detach().numpy() for p in self.head_parity.parameters())
        weights, bias = np.concatenate([-weights, weights]), np.concatenate([-bias, bias])
        logits = build_linear(features, weights, bias, "head_parity")
        parity = op.sigmoid(logits, name="head_parity/sigmoid")

        results = []
        for name, node in {"digit": digit, "parity": parity}.items():
            node.output(0).set_names({name})
            results.append(op.result(node, name=name))
        return ov.Model(results, [image], "digits_inception")


def build_linear(x: ov.Node, weights: np.ndarray, bias: np.ndarray, name: str) -> ov.Node:
    """Return `x` @ `weights`.T + `bias` as a MatMul and an Add."""
    matrix = constant(weights, f"{name}/matmul/weights")
    x = op.matmul(x, matrix, False, True, name=f"{name}/matmul")
    return op.add(x, constant(bias.reshape(1, -1), f"{name}/bias/values"), name=f"{name}/bias")


def make_split(labels: np.ndarray) -> dict[str, list[int]]:
    """Return sorted indices by part: disjoint, stratified by digit, always the same."""
    indices = np.arange(len(labels))
    train, rest = train_test_split(indices, train_size=N_TRAIN, stratify=labels, random_state=SEED)
    calibration, evaluation = train_test_split(
        rest, train_size=N_CALIBRATION, stratify=labels[rest], random_state=SEED
    )
    parts = {"train": train, "calibration": calibration, "evaluation": evaluation}
    return {name: sorted(int(i) for i in part) for name, part in parts.items()}


def augment(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the images turned, scaled and shifted a little at random."""
    n = len(images)
    turn, grow, shift_x, shift_y = torch.rand((4, n), generator=generator) * 2 - 1
    angle, scale = turn * 0.2, 1 + grow * 0.1  # radians; factor
    cos, sin = torch.cos(angle) * scale, torch.sin(angle) * scale
    shift_x, shift_y = shift_x * 0.2, shift_y * 0.2  # 0.25 is one pixel
    rows = [torch.stack([cos, -sin, shift_x], 1), torch.stack([sin, cos, shift_y], 1)]
    grid = functional.affine_grid(torch.stack(rows, 1), [n, 1, 8, 8], align_corners=False)
    return functional.grid_sample(images, grid, align_corners=False)


def train(images: torch.Tensor, labels: torch.Tensor) -> DigitsInception:
    """Return the network trained for a fixed number of epochs, in evaluation mode."""
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # the order of additions must not depend on the machine's cores
    generator = torch.Generator().manual_seed(SEED)
    network = DigitsInception()
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.02)
    n_batches = -(-len(images) // BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.005, total_steps=EPOCHS * n_batches
    )
    for epoch in range(1, EPOCHS + 1):
        total_loss = 0.0
        for batch in torch.randperm(len(images), generator=generator).split(BATCH_SIZE):
            digit, odd = network(augment(images[batch], generator))
            loss = functional.cross_entropy(digit, labels[batch], label_smoothing=0.05)
            odd_loss = functional.binary_cross_entropy_with_logits(odd, labels[batch] % 2.0)
            loss = loss + PARITY_LOSS_WEIGHT * odd_loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total_loss += loss.item() * len(batch)
        if epoch % 10 == 0:
            print(f"epoch {epoch:3d}: training loss {total_loss / len(images):.4f}", flush=True)
    return network.eval()


def predict_torch(network: DigitsInception, images: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return the probabilities of both heads: digit [n, 10] and parity [n, 2]."""
    with torch.no_grad():
        digit, odd = network(images)
    parity = torch.stack([-odd, odd], dim=1).sigmoid()
    return digit.softmax(dim=1).numpy(), parity.numpy()


def predict_openvino(path: Path, images: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return the same, from the exported file, on CPU in f32."""
    compiled = ov.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    rows = []
    for image in images.numpy():
        outputs = compiled(image[np.newaxis])
        rows.append((outputs["digit"][0], outputs["parity"][0]))
    digit, parity = zip(*rows, strict=True)
    return np.stack(digit), np.stack(parity)


def print_accuracy(
    label: str, predicted: tuple[np.ndarray, np.ndarray], labels: np.ndarray
) -> None:
    """Print the share of right answers of both heads."""
    digit, parity = (np.argmax(probabilities, axis=1) for probabilities in predicted)
    print(
        f"{label}: digit {np.mean(digit == labels):.4f}, "
        f"parity {np.mean(parity == labels % 2):.4f} on {len(labels)} images"
    )


def main() -> None:
    """Split, train, export, and check the export against PyTorch."""
    parser = argparse.ArgumentParser(description="Train and export digits_inception.")
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path(__file__).resolve().parent,
        help="where to write the files (default: beside this script)",
    )
    directory: Path = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)

    digits = load_digits()
    labels = digits.target
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1)
    split = make_split(labels)
    (directory / "digits_split.json").write_text(json.dumps(split) + "\n", encoding="utf-8")

    part = split["train"]
    network = train(images[part], torch.tensor(labels[part]))
    path = directory / "digits_inception.xml"
    ov.save_model(network.build(), path, compress_to_fp16=False)

    part = split["evaluation"]
    expected = predict_torch(network, images[part])
    actual = predict_openvino(path, images[part])
    print_accuracy("PyTorch", expected, labels[part])
    print_accuracy("OpenVINO CPU f32", actual, labels[part])
    difference = max(np.abs(e - a).max() for e, a in zip(expected, actual, strict=True))
    print(f"largest difference between their probabilities: {difference:.1e}")


if __name__ == "__main__":
    main()
