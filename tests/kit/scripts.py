"""A script for the commands that take its first loader; it catches what ends it, as some do."""

TRAIN = """
import sys
import numpy as np, torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

class Noise:
    def __init__(self):
        self.rng = np.random.default_rng(0)
    def __call__(self, x):
        return x + self.rng.normal()

class Pictures(Dataset):
    def __init__(self, *more):
        self.transform = transforms.Compose([transforms.RandomCrop(8), transforms.ToTensor(), *more])
    def __getitem__(self, index):
        return self.transform(Image.new("RGB", (12, 12), (index, 2 * index, 3 * index))), index
    def __len__(self):
        return 24

def make():
    return Pictures(Noise())

if __name__ == "__main__":
    print("the script's own words", sys.argv[1:])
    warm_up = DataLoader([1, 2, 3])
    if "--warm-up" in sys.argv:
        list(warm_up)
    data = Pictures(*([Noise()] if "--bad" in sys.argv else []))
    loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=2)
    try:
        for batch in loader:
            print("trained")
    except BaseException:  # such scripts exist
        print("caught")
    list(loader)
    print("went on")
"""
