"""Recipes for ImageNet: ``train.py --recipe NAME --data-dir DIR``, or ``--dataset packed``; every number is an option.

The accuracies are the sources'. None was run here: not verified, no GPU.
"""

from dataclasses import replace

from training.recipe import Recipe

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

RESNET50 = Recipe(
    source=(
        "Goyal et al., 'Accurate, large minibatch SGD' (2017): batches of 256 at 0.1, five epochs of warm-up, 90 in "
        "all; 76.1 to 76.4 % with steps, here with a cosine and label smoothing"
    ),
    model="resnet50",
    epochs=90,
    batch_size=256,
    lr=0.1,
    warmup=5 / 90,
    weight_decay=1e-4,
    norm_weight_decay=0.0,
    augment="resized-crop",
    image_size=224,
    test_resize=256,
    mean=MEAN,
    std=STD,
)

RECIPES = {
    "imagenet-resnet50": RESNET50,
    "imagenet-resnet18": replace(
        RESNET50,
        source="torchvision's recipe of 90 epochs reaches 69.76 % with steps; here with a cosine and label smoothing",
        model="resnet18",
    ),
    "imagenet-resnet18-fast": replace(
        RESNET50,
        source=(
            "ffcv-imagenet's rn18_16_epochs: 66.9 %, of flips in testing. Other than there: the images grow in the "
            "second third of the epochs, not between epochs 11 and 13, and the files are the original ones, not of "
            "400 pixels at most"
        ),
        model="resnet18",
        epochs=16,
        batch_size=1024,
        lr=0.5,
        schedule="linear",
        warmup=2 / 16,
        nesterov=False,
        weight_decay=5e-5,
        blur=True,
        first_image_size=160,
        image_size=192,
        test_image_size=256,
        test_resize=292,  # 256 / 224 times the side
        test_views="flips",
    ),
    "imagenet-resnet50-long": replace(
        RESNET50,
        source=(
            "torchvision's second recipe (Vryniotis, 'How to train state-of-the-art models using torchvision's latest "
            "primitives', 2021): 80.67 % in 600 epochs, and 80.86 % with repeated augmentation, which is not here; "
            "here MixUp or CutMix is chosen for each pair of images, there for each batch"
        ),
        epochs=600,
        batch_size=1024,
        lr=0.5,
        first_lr=0.01,
        warmup=5 / 600,
        nesterov=False,
        weight_decay=2e-5,
        trivial_augment=True,
        erasing=0.1,
        mixup=0.2,
        cutmix=1.0,
        # There 0.99998 is a share of the images, and averaged is every 32 steps: 1 - 2e-5 * 1024 * 32 / 600 then.
        ema_decay=(1 - 2e-5 * 1024 * 32 / 600) ** (1 / 32),
        image_size=176,
        test_image_size=224,
        test_resize=232,
    ),
}
