web, code, books = range(1000), range(500), range(100)
documents = [{"input_ids": [number] * (number % 90 + 1)} for number in range(2000)]


class model:
    """Has a loss."""

    loss = 0.0

    def __init__(self, input_ids, labels, position_ids, **more):
        assert input_ids.shape == labels.shape == position_ids.shape
