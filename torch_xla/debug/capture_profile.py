"""Asks a running program for a profile: `python -m torch_xla.debug.capture_profile --service_addr
localhost:9012 --logdir /tmp/log`. The program has called `torch_xla.debug.profiler.start_server`.
"""

from __future__ import annotations

import argparse

from torch_xla.debug import profiler


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="capture_profile",
        description="Records what a running program does on xla, for TensorBoard.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--service_addr", required=True, help="addresses of its profiler servers: localhost:9012,.."
    )
    parser.add_argument("--logdir", required=True, help="a log directory of TensorBoard")
    parser.add_argument("--duration_ms", type=int, default=1000, help="how long to record")
    parser.add_argument(
        "--num_tracing_attempts", type=int, default=3, help="how often to ask an idle program"
    )
    parser.add_argument("--timeout_s", type=int, default=120, help="how long to wait for a server")
    parser.add_argument("--interval_s", type=int, default=5, help="how long to wait in between")
    profiler.trace(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
