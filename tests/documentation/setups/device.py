# CIFAR-10 itself would have to be downloaded.
class _Cifar10(torch.utils.data.TensorDataset):
    def __init__(self, root, transform):
        draws = torch.Generator().manual_seed(0)
        super().__init__(
            torch.randint(0, 256, (64, 3, 32, 32), generator=draws, dtype=torch.uint8), torch.arange(64) % 10
        )


datasets.CIFAR10 = _Cifar10
