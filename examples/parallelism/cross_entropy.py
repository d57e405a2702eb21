"""What ``cross_entropy`` accepts, and how it averages.

    python examples/parallelism/cross_entropy.py

The notes: it includes softmax; the target must be long; shapes are [N, C] and [N]; the weight must be float. Since then
targets may be probabilities, which mixup, cutmix and label smoothing need, and inputs may have more dimensions. With
``weight`` or ``ignore_index`` means of batches cannot be averaged, neither over ranks nor in accumulation.

Measured (torch 2.13, CPU): all pairs agree to twelve decimals; int32 is rejected; with a softmax before it, a perfect
prediction of 5 classes still has a loss of 0.905.
"""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # the usual name

CLASSES = 5


def example(num: int = 6) -> tuple[Tensor, Tensor]:
    """Return logits [N, C], float64, and classes [N], int64."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(num, CLASSES, generator=generator, dtype=torch.float64)
    return logits, torch.randint(0, CLASSES, (num,), generator=generator)


def smoothed(classes: Tensor, amount: float) -> Tensor:
    """Return the targets that ``label_smoothing=amount`` uses: [N, C], float64."""
    return F.one_hot(classes, CLASSES).double() * (1 - amount) + amount / CLASSES


def mixed(classes: Tensor, others: Tensor, share: float) -> Tensor:
    """Return mixup's probabilities: [N, C], float64."""
    return share * F.one_hot(classes, CLASSES).double() + (1 - share) * F.one_hot(others, CLASSES).double()


def target_dtypes() -> dict[str, str]:
    """Return for each dtype of classes that it is accepted, or the error."""
    logits, classes = example()
    said = {}
    for dtype in (torch.int64, torch.uint8, torch.int32, torch.float64):
        try:
            F.cross_entropy(logits, classes.to(dtype))
        except (RuntimeError, ValueError) as error:
            said[str(dtype)] = str(error).splitlines()[0]
        else:
            said[str(dtype)] = "accepted"
    return said


def equalities() -> dict[str, tuple[Tensor, Tensor]]:
    """Return pairs of equal losses, by the fact that they show."""
    logits, classes = example()
    others = classes.flip(0)
    weight = torch.arange(1.0, CLASSES + 1, dtype=torch.float64)
    each = F.cross_entropy(logits, classes, weight, reduction="none")
    parts = [F.cross_entropy(logits[half], classes[half], weight, reduction="sum") for half in (slice(2), slice(2, 6))]
    pixels = logits.view(2, 3, CLASSES).movedim(2, 1)
    blank = classes.masked_fill(classes == classes[0], -100)
    return {
        "it contains log_softmax": (
            F.cross_entropy(logits, classes),
            F.nll_loss(F.log_softmax(logits, dim=1), classes),
        ),
        "label_smoothing is soft targets": (
            F.cross_entropy(logits, classes, label_smoothing=0.1),
            F.cross_entropy(logits, smoothed(classes, 0.1)),
        ),
        "mixup's soft targets are two losses": (
            F.cross_entropy(logits, mixed(classes, others, 0.3)),
            0.3 * F.cross_entropy(logits, classes) + 0.7 * F.cross_entropy(logits, others),
        ),
        "more dimensions are more samples": (
            F.cross_entropy(pixels, classes.view(2, 3)),
            F.cross_entropy(logits, classes),
        ),
        "the weighted mean divides by the weights": (
            F.cross_entropy(logits, classes, weight),
            each.sum() / weight[classes].sum(),
        ),
        "sums of parts over all weights are the whole": (
            F.cross_entropy(logits, classes, weight),
            torch.stack(parts).sum() / weight[classes].sum(),
        ),
        "ignored classes do not count": (
            F.cross_entropy(logits, blank),
            F.cross_entropy(logits[blank >= 0], classes[blank >= 0]),
        ),
    }


def softmax_before_it() -> tuple[Tensor, Tensor]:
    """Return the loss of a perfect prediction, without and with the common mistake of a softmax before."""
    classes = torch.arange(CLASSES)
    sure = 1000.0 * F.one_hot(classes, CLASSES).double()
    return F.cross_entropy(sure, classes), F.cross_entropy(sure.softmax(dim=1), classes)


def main() -> None:
    """Print each fact."""
    for words, (left, right) in equalities().items():
        print(f"{words:46} {left.item():.12f} {right.item():.12f}")
    for dtype, said in target_dtypes().items():
        print(f"classes of {dtype:35} {said}")
    right, wrong = softmax_before_it()
    print(f"loss of a perfect prediction: {right.item():.3f}; with a softmax before: {wrong.item():.3f}")


if __name__ == "__main__":
    main()
