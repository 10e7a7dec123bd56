"""The reasons to doubt a number, by name. `docs/flags.md` has a paragraph on each."""

from __future__ import annotations

__all__ = ["FLAGS", "MISLEADING", "Kind", "flag", "some"]

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tmifpe.core.registry import Registry

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tmifpe.run.result import Flag


@dataclass(frozen=True)
class Kind:
    """One kind of flag: what to do when it is raised."""

    advice: str


FLAGS: Registry[Kind] = Registry("flag")
MISLEADING = frozenset(
    {
        "gradient-disagrees",
        "behaves-differently",
        "gradient-dies",
        "unavailable-gradients",
        "zero-gradients",
        "gradient-lost",
        "randomised",
        "dropout-active",
        "inference-time-optimisation",
        "unstable-predictions",
        "silent-success",
        "unconstrained-failure",
        "found-from-outside",
        "black-box-beats-white-box",
    }
)
"""After these a survivor may be one of a misleading gradient and not of the network: `full` goes on by other means."""


def flag(name: str, seen: str, advice: str | None = None) -> Flag:
    """A flag of the catalogue, with what was seen; `advice` only where this case needs its own.

    >>> flag("probabilities", "rows sum to 1").name
    'probabilities'
    """
    from tmifpe.run.result import Flag

    return Flag(name, seen, advice or FLAGS.get(name).advice)


def some(indices: NDArray[np.integer], most: int = 10) -> str:
    """How many examples, and which: the first of them by index.

    >>> import numpy as np
    >>> some(np.array([3, 5])), some(np.arange(12), 2)
    ('2 examples (3, 5)', '12 examples (0, 1 and 10 more)')
    """
    named = ", ".join(str(index) for index in indices[:most])
    more = f" and {len(indices) - most} more" if len(indices) > most else ""
    return f"{len(indices)} example{'s' * (len(indices) != 1)} ({named}{more})"


def _add(name: str, summary: str, advice: str) -> None:
    FLAGS.add(name, Kind(advice), summary)


# The request, before anything is computed.
_add(
    "large-eps",
    "eps is so large that no model could be robust",
    "eps is in the units of the images: for pixel values of 255 write `eps=8/255`.",
)
_add(
    "small-eps",
    "eps is a tiny part of the box, as if it were meant for another",
    "eps is in the units of the box: for pixels of 0 to 255 write `eps=8`, not 8/255.",
)
_add(
    "small-steps",
    "the steps of the attack are too small to cross the ball",
    "step_size is in units of eps: 2/255 at eps 8/255 is step_size=0.25.",
)

_add(
    "loss-lowers-margin",
    "climbing the loss leads away from the class boundary",
    "An attack climbs its loss, so return the negative, cross-entropy itself and not minus it; "
    "`tmifpe.testing.check_loss` tests a loss of your own.",
)

# The model, examined before the attack.
_add(
    "randomised",
    "the same images give different logits on a second reading",
    "Average the gradient over draws with `eot=20`, and report a mean over draws with `repeats=10`.",
)
_add(
    "dropout-active",
    "dropout is switched on at inference",
    "Switch it off (module.eval() in the factory, training=False in functional calls), or treat the model as "
    "randomised with `eot=20` and `repeats=10`.",
)
_add(
    "batch-dependent",
    "the logits of an image depend on the other images in its batch",
    "Put BatchNorm in eval mode, with its running statistics; the verdict on one image must not depend on others.",
)
_add(
    "remembers-images",
    "other images in the same tensor get the logits of those before",
    "Let the model compute every time, or tell images apart by their content: their address and object "
    "are given to others. What an attack was shown may be of other images, and the number too high.",
)
_add(
    "probabilities",
    "the model returns probabilities instead of logits",
    "Remove the softmax at the end: losses on logits saturate on probabilities, and the attack is weakened.",
)
_add(
    "inference-time-optimisation",
    "the model differentiates inside its forward pass",
    "The gradient may not flow through the inner optimisation: attack it end to end, or add transferred and "
    "gradient-free attacks.",
)
_add(
    "too-few-classes",
    "with two classes all losses push in the same direction",
    'Agreement between losses is no evidence here: run the default, `attack="full"`, and a gradient-free attack.',
)
_add(
    "part-of-box",
    "the images use only a small part of the box, or one half of it",
    "Scale the images to the whole box (were they divided by 255 twice?), or give the threat the box that they are in: "
    "eps and the room to move are measured in it.",
)
_add(
    "normalisation",
    "the images look as if they were normalised wrongly, or twice",
    "Give the data in the box and the normalisation of the training once: inside the model, or by "
    "`tmifpe.Normalize(model, mean, std)`.",
)
_add(
    "saturated-logits",
    "the logits are so large that the softmax is exactly one-hot, or that rounding swamps their gaps",
    'Use a loss that does not depend on the scale of the logits: that of the default, `attack="full"`, or cw and '
    '`verify="fp64"`; do not compare with numbers found by cross-entropy.',
)
_add(
    "gradient-lost",
    "floating point loses the gradient of this loss, though the margin has one",
    'Run the default, `attack="full"`, whose loss, T-MIFPE, never underflows: the survivors of this run were invisible '
    "to the loss.",
)
_add(
    "unavailable-gradients",
    "the model has no usable gradient at all at the images",
    "Something in it is not differentiable (rounding, argmax, detach): attack a differentiable approximation of that "
    "part, or add a gradient-free attack.",
)
_add(
    "gradient-dies",
    "the gradient dies in a module that can be named",
    'Attack through the named module with `straight_through="NAME"`, an identity on the way back (its input and output '
    "need one shape); calls in a forward pass first have to become a module of their own.",
)
_add(
    "gradient-disagrees",
    "a step along the gradient does not do what the gradient promises",
    "The backward pass is wrong, or the loss is rough at a scale far below eps: look for hooks and backward passes of "
    "your own.",
)
_add(
    "behaves-differently",
    "the model answers otherwise when gradients are on",
    "What the gradient belongs to is not what decides: have one forward pass for both.",
)
_add(
    "chance-accuracy",
    "the clean accuracy is no better than guessing",
    "Check weights, normalisation, labels and the order of the classes before reading anything into robustness.",
)

# The attack, examined after it.
_add(
    "early-exit-wrong",
    "early exit was wrong for an example that was checked, and is off for this run",
    "The number stands: every example was attacked to the end. Without early exit the first try is saved.",
)
_add(
    "zero-gradients",
    "the gradient was exactly zero while attacking examples that survived",
    'Those survivors were not attacked: run the default, `attack="full"`, whose loss, T-MIFPE, never underflows; if '
    "that gradient is zero too, a gradient-free attack.",
)
_add(
    "unusable-logits",
    "some attacked images had NaN or infinite logits",
    'Find the overflow (try `precision="fp64"`): such a query never counts as success: the number may be too high.',
)
_add(
    "unstable-predictions",
    "the loss is noise at distances far below eps",
    "The gradient says nothing about the loss a step away: average it over draws (`eot`), smooth it, or use a "
    "gradient-free attack.",
)
_add(
    "silent-success",
    "survivors were misclassified at some step, but not when read again",
    "The answer depends on the draw or on the batch: find out why before calling these examples robust.",
)
_add(
    "incomplete-optimisation",
    "the margin of survivors was still rising when the steps ran out",
    'Run the default, `attack="full"`, or take ten times as many steps.',
)
_add(
    "transfer-failure",
    "adversarial examples of another model break what the attack did not",
    "This attack failed, but the model is not robust: look for masked gradients, and report the accuracy with both.",
)
_add(
    "spot-check",
    "a stronger attack broke some of the survivors that it was tried on",
    'The number is too high: run the default, `attack="full"`, or evaluate with that attack, and check again.',
)
_add(
    "unconstrained-failure",
    "the attack fails even with the whole box allowed",
    "An attack without a limit must always succeed: the gradients are masked, or the model ignores its input.",
)
_add(
    "found-from-outside",
    "started from a larger ball, the attack breaks what it did not break from within",
    'The number is too high: run the default, `attack="full"`, then take more steps and restarts; if that does not '
    "help, the gradients near the images are misleading: use attacks of another kind (AutoAttack, a gradient-free one) "
    "and report their union.",
)
_add(
    "black-box-beats-white-box",
    "a gradient-free attack broke what gradient attacks did not",
    "The gradients are masked: do not trust the gradient attacks alone, and give the gradient-free one more queries.",
)
_add(
    "non-monotone-eps",
    "a larger eps breaks less than a smaller one",
    "The larger ball contains the smaller: use more steps, or start from the answer for the smaller eps.",
)
_add(
    "fragile",
    "examples break in one precision and not in the other",
    "Report both numbers: those examples are within rounding error of the boundary, and count as broken in the run's "
    "precision only.",
)
