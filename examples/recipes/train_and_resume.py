"""A PyTorch training loop that saves model, optimizer and place in the data, and resumes in mid-epoch."""

import tempfile

import torch

import cedar

rows = cedar.from_items([{"x": [i / 100, 1 - i / 100], "y": float(i > 50)} for i in range(100)])
batches = rows.map(torch.tensor, "x").shuffle(seed=1).batch(8)
device = "cuda" if torch.cuda.is_available() else "cpu"
path = tempfile.mkdtemp() + "/checkpoint.pt"


def train(until: int, resume: bool) -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1).to(device)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    losses = []
    with batches.loader(format="torch", device=device) as loader:  # copies ahead of the loop, from pinned memory
        if resume:
            saved = torch.load(path)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(saved["loader"])
        for batch in loader:
            loss = torch.nn.functional.mse_loss(model(batch["x"].float())[:, 0], batch["y"].float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) == until:
                states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(states | {"loader": loader.state_dict()}, path)
                break
    return losses


whole, first = train(13, resume=False), train(5, resume=False)
rest = train(8, resume=True)
print(whole)
assert first + rest == whole
