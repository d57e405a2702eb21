draws = torch.Generator().manual_seed(0)
texts = [torch.randint(1, 100, (10 + 7 * place % 40,), generator=draws) for place in range(64)]


def pad(batch):
    return torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)
