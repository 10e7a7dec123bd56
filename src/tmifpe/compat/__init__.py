"""Doors for code written for other libraries: change the import, keep the calls.

`autoattack`, `torchattacks`, `foolbox` and `robustbench` have their peers' names, signatures and return values.
`torchmetrics`, `training` and `lightning` measure robust accuracy while a model is trained; `trackers` tell MLflow,
Weights & Biases or TensorBoard of a result. What tmifpe cannot do as
the peer does it is refused with a sentence; nothing is quietly replaced by something weaker.
"""
