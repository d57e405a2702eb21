"""A script that makes a single loader."""

from torch.utils.data import DataLoader
from train import dataset

if __name__ == "__main__":
    loader = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=1)
    for _ in range(100):
        for _ in loader:
            pass
