"""Changes of PyTorch for torch.distributed over the processes of a job."""
