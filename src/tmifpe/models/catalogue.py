"""Every model source by name. A source is a function from a request to a network and what is known about it."""

from __future__ import annotations

__all__ = ["MODELS", "SUFFIXES", "register_model"]

from typing import TYPE_CHECKING, Any

from tmifpe.core.registry import Registry

if TYPE_CHECKING:
    from tmifpe.models.source import Source


def _admit(thing: Any, name: str) -> Source:
    from tmifpe.models.factory import plugged_in

    return plugged_in(thing, name)


MODELS: Registry[Source] = Registry("model", "models", _admit)
MODELS.add("digits-robust", "tmifpe.models.bundled:bundled", "small CNN on digits, adversarially trained; bundled")
MODELS.add("digits-distilled", "tmifpe.models.bundled:bundled", "small CNN on digits, distilled; bundled")
MODELS.add("mnist-smallcnn", "tmifpe.models.mnist:mnist_smallcnn", "SmallCNN of TRADES; needs weights")
MODELS.add("mnist-fast", "tmifpe.models.mnist:mnist_fast", "CNN of Fast adversarial training; needs weights")
MODELS.add("mnist-lenet5", "tmifpe.models.mnist:mnist_lenet5", "LeNet5, adversarially trained; needs weights")
MODELS.add("factory", "tmifpe.models.factory:factory", "file.py:factory or package.module:factory; runs your code")
MODELS.add("onnx", "tmifpe.models.onnx_file:onnx_file", "FILE.onnx (extra onnx)")
MODELS.add("pt2", "tmifpe.models.pt2:pt2", "FILE.pt2, saved by torch.export")
MODELS.add("torchscript", "tmifpe.models.torchscript:torchscript", "FILE.pt or FILE.ts, saved by torch.jit")
MODELS.add("robustbench", "tmifpe.models.robustbench_zoo:robustbench", "robustbench:DATASET/THREAT/ID (extra)")
MODELS.add("timm", "tmifpe.models.timm_model:timm_model", "timm:NAME with its own normalisation (extra timm)")
MODELS.add("hf", "tmifpe.models.hf:hf", "hf:NAME or a folder, image classification of transformers (extra hf)")
MODELS.add("clip", "tmifpe.models.composed.clip:clip", "clip:NAME or a folder, zero-shot; needs classes (extra hf)")
MODELS.add("probe", "tmifpe.models.composed.probe:probe", "probe:MODEL, its features and a linear layer; needs weights")
MODELS.add("ensemble", "tmifpe.models.composed.ensemble:ensemble", "ensemble:A+B, the mean of their logits")
MODELS.add(
    "ensemble-probabilities",
    "tmifpe.models.composed.ensemble:ensemble_probabilities",
    "ensemble-probabilities:A+B, the log of the mean of their probabilities",
)

register_model = MODELS.register

SUFFIXES = {
    ".onnx": "onnx",
    ".pt2": "pt2",
    ".pt": "torchscript",
    ".pth": "torchscript",
    ".ts": "torchscript",
    ".torchscript": "torchscript",
}
"""File endings that name their source by themselves."""
