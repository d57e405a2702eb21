"""Recipes for CIFAR-10: ``train.py --recipe NAME``; every number is also an option.

Each ``source`` says what to expect. Accuracies are those of the last epoch, on plain images; a recipe with
``test_views`` also reports the accuracy with test-time augmentation, as speed records do. They cannot be compared with
scripts that report the best epoch, which is a choice made on the test set.
"""

from dataclasses import replace

from training.recipe import Recipe

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of all pixels of the training images

# airbench94's learning rate of 11.5 is for a loss summed over 1,024 images and excludes the factor 1 + 1 / 0.15 of
# Nesterov momentum; here the loss is a mean. Its weight decay is not multiplied by the learning rate.
FAST = Recipe(
    source=(
        "airbench94 (Jordan, arXiv 2404.00498, and its code legacy/airbench94.py): 94.01 % in the mean of 1,000 runs, "
        "with flips and shifts in testing. Differences: 10 epochs, not 9.9; float32, or --precision bf16, not "
        "float16; batch normalisation's eps is 1e-5, not 1e-12; the frozen bias's gradient is computed and ignored. "
        "Not verified: no GPU"
    ),
    model="airbench",
    epochs=10,
    batch_size=1024,
    lr=1.5,  # 11.5 / (1 + 1 / 0.15)
    schedule="linear",
    first_lr=0.2,
    warmup=0.23,
    final_lr=0.07,
    momentum=0.85,
    weight_decay=1.33e-3,  # 0.0153 / 11.5
    norm_weight_decay=1.33e-3,
    bias_lr_factor=64.0,
    whitening_bias_epochs=3,
    label_smoothing=0.2,
    lookahead=5,
    lookahead_decay=0.95,
    padding=2,
    padding_mode="reflect",
    flip="alternating",
    test_views="flips-and-shifts",
    mean=MEAN,
    std=STD,
)

RESNET18 = Recipe(
    source=(
        "He et al. (2016), section 4.2, with a cosine schedule and warm-up: 95.2 to 95.7 % are reported for 200 "
        "epochs; not verified: no GPU"
    ),
    model="resnet18-cifar",
    epochs=200,
    batch_size=128,
    lr=0.1,
    warmup=0.025,
    label_smoothing=0.0,
    mean=MEAN,
    std=STD,
)

RECIPES = {
    "cifar10-fast": FAST,
    "cifar10-proxy": replace(
        FAST,
        source=(
            "as cifar10-fast, with the small network that airbench96 selects its images with; on two cores: 82.6 % in "
            "3 minutes on a copy of CIFAR-10 compressed as JPEG (3 seeds, 2026-11-22, bf16, channels-last)"
        ),
        model="proxy",
        epochs=5,
        batch_size=512,
        lr=0.75,  # in proportion to the batch size
    ),
    "cifar10-resnet18": RESNET18,
    "cifar10-mobilenetv2": replace(
        RESNET18,
        source="as ResNet-18: 94.0 to 94.6 % are reported for 200 to 300 epochs; not verified: no GPU",
        model="mobilenetv2-cifar",
        weight_decay=1e-4,
        norm_weight_decay=1e-4,
    ),
    "cifar10-mobilenetv2-without-norm": replace(
        RESNET18,
        source="no published accuracy; a low learning rate and gradient clipping keep it stable; not verified: no GPU",
        model="mobilenetv2-cifar",
        norm="none",
        lr=0.02,
        clip_norm=1.0,
        weight_decay=1e-4,
        norm_weight_decay=1e-4,
    ),
}
