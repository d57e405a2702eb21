import fsspec

store = fsspec.filesystem("memory")
for path, _ in dataset.samples:
    store.pipe_file(f"/bucket/{path}", Path(path).read_bytes())
paths = [f"/bucket/{path}" for path, _ in dataset.samples]
