"""A script as people have it: torch's loader over an ImageFolder, and a loop. It ignores its arguments."""

import torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

transform = transforms.Compose([transforms.Resize(32), transforms.CenterCrop(32), transforms.ToTensor()])
dataset = datasets.ImageFolder("imagenet/train", transform)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.01)


def train(epochs=12):
    train_loader = DataLoader(dataset, batch_size=2, shuffle=True, num_workers=2, persistent_workers=True)
    for _ in range(epochs):
        for images, labels in train_loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()


if __name__ == "__main__":
    train()
