"""What commands name in place of a script: a loader, or a function that makes it."""

from train import dataset

from fastload import DataLoader


def make_loader():
    return DataLoader(dataset, batch_size=4, shuffle=True, num_workers=2, seed=1)


loader = make_loader()
