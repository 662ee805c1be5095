import torch

device = "cuda" if torch.cuda.is_available() else "cpu"


def rosenbrock(p):
    return (1 - p[0]) ** 2 + 100 * (p[1] - p[0] ** 2) ** 2


def minimise(start, rounds=18):
    point = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([point], lr=0.1, max_iter=2, history_size=4)
    evaluations = []

    def closure():
        optimizer.zero_grad()
        value = rosenbrock(point)
        value.backward()
        evaluations.append(value)  # leak: holder=evaluations kind=graph lint=accumulate
        return value

    for _ in range(rounds):
        optimizer.step(closure)
    return point.detach(), evaluations


found, evaluations = minimise(torch.tensor([-1.5, 2.0], device=device))
print(found.tolist(), len(evaluations))
