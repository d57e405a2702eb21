sizes = [len(Path(path).read_bytes()) for path, _ in dataset.samples]
