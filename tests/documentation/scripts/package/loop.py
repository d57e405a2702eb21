"""The same script as a module."""

from train import train

if __name__ == "__main__":
    train()
