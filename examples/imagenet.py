"""Recipes for ImageNet: ``train.py --recipe NAME --data-dir DIR``, or ``--dataset packed``; every number is an option.

The accuracies are those of the sources; not verified: no GPU.
"""

from dataclasses import replace

from training.recipe import Recipe

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

RESNET50 = Recipe(
    source=(
        "Goyal et al., 'Accurate, large minibatch SGD' (2017): batches of 256 at 0.1, 90 epochs, 5 of them "
        "warm-up; 76.1 to 76.4 % with a step schedule; here with a cosine schedule and label smoothing"
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
        source=(
            "torchvision's recipe: 69.76 % in 90 epochs with a step schedule; here with a cosine schedule and label "
            "smoothing"
        ),
        model="resnet18",
    ),
    "imagenet-resnet18-fast": replace(
        RESNET50,
        source=(
            "ffcv-imagenet's rn18_16_epochs: 66.9 %, with flips in testing. Differences: the images grow in the second "
            "third of the epochs, not between epochs 11 and 13, and the files are the originals, not resized to at "
            "most 400 pixels"
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
            "primitives', 2021): 80.67 % in 600 epochs (80.86 % with repeated augmentation, which is not included); "
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
        # There the average is updated every 32 steps, with a decay of 1 - 2e-5 * 1024 * 32 / 600.
        ema_decay=(1 - 2e-5 * 1024 * 32 / 600) ** (1 / 32),
        image_size=176,
        test_image_size=224,
        test_resize=232,
    ),
}
