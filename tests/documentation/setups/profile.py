import pytest


def train_one_epoch(loader):
    for images, _ in loader:
        model(images)
