def make_loader():
    return DataLoader(dataset, 4, shuffle=True, num_workers=2, seed=1)
