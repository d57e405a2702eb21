paths, labels = [path for path, _ in dataset.samples], dataset.targets
