"""The same script as a module, with a second loader."""

from torch.utils.data import DataLoader
from train import dataset, model, train

if __name__ == "__main__":
    train()
    for images, _ in DataLoader(dataset, batch_size=8):
        model(images)
