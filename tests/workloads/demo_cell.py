import time, torch

x = torch.randn(1000, 1000, device="cuda")
y = torch.randn(1000, 1000, device="cuda")
w = torch.randn(1000, 1000, device="cuda", requires_grad=True)

losses = []
for step in range(100_000):
    # The mistake: each loss keeps its whole graph. `.item()` would keep a number.
    losses.append(((x @ w - y) ** 2).mean())
    time.sleep(0.05)
