"""The documents' name of examples/train_mnist_fsdp_with_ckpt.py."""

import pathlib
import sys

if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "examples"))
    import train_mnist_fsdp_with_ckpt

    train_mnist_fsdp_with_ckpt.main()
