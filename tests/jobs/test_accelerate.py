"""A job that trains by accelerate: by torchrun, and by its notebook_launcher, which forks."""

from __future__ import annotations

import pytest

CODE = """
    import os, sys
    import torch
    from accelerate import Accelerator, notebook_launcher
    from torch import nn

    draw = torch.Generator().manual_seed(0)
    DATA = torch.randn(48, 6, generator=draw), torch.randint(2, (48,), generator=draw)

    def parts():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

    def loss_of(model, x, y):
        return nn.functional.cross_entropy(model(x), y)

    def expected():
        model, optimizer, scheduler = parts()
        for x, y in zip(*(t.split(16) for t in DATA)):  # two batches of 8, one for each rank
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            scheduler.step()
            scheduler.step()  # accelerate's, once for each rank
        return model

    def train():
        accelerator = Accelerator()
        rank = accelerator.process_index
        assert (str(accelerator.device), accelerator.num_processes) == ("xla:0", 2)
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*DATA), batch_size=8)
        model, optimizer, scheduler, loader = accelerator.prepare(*parts(), loader)
        for x, y in loader:
            assert x.device.type == "xla"
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, x, y))
                accelerator.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        for a, b in zip(model.parameters(), expected().parameters()):
            torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-5, atol=1e-6)
        ranks = accelerator.gather(torch.tensor([rank, rank + 10], device=accelerator.device))
        assert ranks.tolist() == [0, 10, 1, 11]
        accelerator.save_state("state")
        accelerator.wait_for_everyone()
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()
        accelerator.load_state("state")
        for a, b in zip(model.parameters(), expected().parameters()):
            torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-5, atol=1e-6)
        print("trained", rank, flush=True)

    if __name__ == "__main__":
        if "KAGGLE_KERNEL_RUN_TYPE" in os.environ:
            notebook_launcher(train, (), num_processes=2)
        else:
            train()
"""


@pytest.mark.parametrize("launcher", ["torchrun", "notebook_launcher"])
def test_accelerate(jobs, launcher):
    if launcher == "torchrun":
        (done,) = jobs.torchrun(CODE)
    else:  # where it takes the one of TPUs: xmp.spawn
        done = jobs.spawn(CODE, env={"KAGGLE_KERNEL_RUN_TYPE": "Interactive", "TPU_NAME": "local"})
    assert sorted(line for line in done.stdout.splitlines() if "trained" in line) == [
        "trained 0",
        "trained 1",
    ]
