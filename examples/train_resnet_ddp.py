"""Trains a ResNet-50 with PyTorch's DistributedDataParallel, a process for each device.

CPU_NUM_DEVICES=2 python examples/train_resnet_ddp.py --batch_size 8 --image_size 64
torchrun --nproc-per-node 2 examples/train_resnet_ddp.py
"""

import torch.distributed as dist
import train_resnet_base
from torch.nn.parallel import DistributedDataParallel

import torch_xla
import torch_xla.distributed.xla_backend  # noqa: F401  registers the backend


class DdpTraining(train_resnet_base.Training):
    is_one_graph = False  # DDP reads what it decides by in its first steps

    def wrapped(self, model):
        # Buckets hold the gradients: they are not copied.
        return DistributedDataParallel(model, gradient_as_bucket_view=True)


def run(index, args):
    dist.init_process_group("xla", init_method="xla://")
    DdpTraining(args).start()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch_xla.launch(run, args=(train_resnet_base.parser(__doc__).parse_args(),))
