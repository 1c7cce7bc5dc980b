"""torchdata: a PyTorch training loop that saves model, optimizer and place in the data, and resumes in mid-epoch."""

import tempfile

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

rows = [{"x": torch.tensor([i / 100, 1 - i / 100]), "y": float(i > 50)} for i in range(100)]
device = "cuda" if torch.cuda.is_available() else "cpu"
path = tempfile.mkdtemp() + "/checkpoint.pt"


def train(until: int, resume: bool) -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1).to(device)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    losses = []
    loader = StatefulDataLoader(rows, 8, shuffle=True, pin_memory=device == "cuda")
    if resume:
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
    for batch in loader:
        x, y = batch["x"].to(device, non_blocking=True), batch["y"].to(device, non_blocking=True)
        loss = torch.nn.functional.mse_loss(model(x)[:, 0], y.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if len(losses) == until:
            states = {"model": model, "optimizer": optimizer, "loader": loader}
            torch.save({name: each.state_dict() for name, each in states.items()}, path)
            break
    return losses


whole, first = train(13, resume=False), train(5, resume=False)
rest = train(8, resume=True)
print(whole)
assert first + rest == whole
