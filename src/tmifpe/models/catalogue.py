"""Every model source by name. A source is a function from a request to a network and what is known about it."""

from __future__ import annotations

__all__ = ["MODELS", "SUFFIXES", "register_model"]

from tmifpe.core.registry import Registry
from tmifpe.models.factory import plugged_in
from tmifpe.models.source import Source

MODELS: Registry[Source] = Registry("model", "models", plugged_in)
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
