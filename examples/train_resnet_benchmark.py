"""Measures the time of a training step, and where it goes: recording, the device, and the rest.

python examples/train_resnet_benchmark.py --model resnet18 --batch_size 8 --image_size 64
"""

import time

import train_resnet_base

import torch_xla
import torch_xla.debug.metrics as met


class Benchmark(train_resnet_base.Training):
    def measured(self):
        """Seconds of each step, after two that compile."""
        batches = iter(self.loader)
        for _ in range(2):
            self.compiled_step(*next(batches))
        torch_xla.sync(wait=True)
        met.clear_metrics()
        before = last = time.perf_counter()
        recorded = 0.0
        steps = 0
        for data, target in batches:
            last = time.perf_counter()
            self.compiled_step(data, target)
            recorded += time.perf_counter() - last
            steps += 1
        torch_xla.sync(wait=True)
        return steps, time.perf_counter() - before, recorded

    def start(self):
        self.model.train()
        steps, total, recorded = self.measured()
        runs, nanoseconds = met.metric_data("ExecuteTime")[:2]
        print(f"steps: {steps}")
        rate = self.args.batch_size * steps / total
        print(f"step: {total / steps * 1e3:.2f} ms, {rate:.1f} images/s")
        print(f"recorded and launched in: {recorded / steps * 1e3:.2f} ms a step")
        print(f"device: {nanoseconds / runs / 1e6:.2f} ms a run")


if __name__ == "__main__":
    arguments = train_resnet_base.parser(__doc__)
    arguments.set_defaults(num_steps=22)
    Benchmark(arguments.parse_args()).start()
