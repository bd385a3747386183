"""The devices of this process and its place in the job, and `torch.xla`."""
