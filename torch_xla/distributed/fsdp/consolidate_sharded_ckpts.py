"""Makes one checkpoint of those of all ranks:

python -m torch_xla.distributed.fsdp.consolidate_sharded_ckpts --ckpt_prefix P --ckpt_suffix S
"""

from __future__ import annotations

import argparse

from torch_xla.distributed.fsdp.state_dict_utils import consolidate_sharded_model_checkpoints


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--ckpt_prefix", required=True, help="what the paths of the ranks' checkpoints begin with"
    )
    parser.add_argument(
        "--ckpt_suffix", default="*.pth", help="a pattern for what follows (default: %(default)s)"
    )
    parser.add_argument(
        "--save_path", default="", help="the result's path (default: PREFIX_consolidated.pth)"
    )
    arguments = parser.parse_args()
    consolidate_sharded_model_checkpoints(
        arguments.ckpt_prefix, arguments.ckpt_suffix, arguments.save_path
    )


if __name__ == "__main__":
    main()
