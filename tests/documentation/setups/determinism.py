path = "checkpoint.pt"
correct = 0
