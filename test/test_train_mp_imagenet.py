"""The documents' name of examples/train_imagenet.py."""

import pathlib
import sys

if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "examples"))
    import train_imagenet

    train_imagenet.main()
