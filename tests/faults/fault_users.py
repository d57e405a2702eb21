class Launcher:
    def __init__(self, f):
        pass

    def close(self):
        pass

    def end_all(self):
        pass
