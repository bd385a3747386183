"""`train_imagenet.py --fsdp`."""

import train_imagenet


def main():
    train_imagenet.main(fsdp=True)


if __name__ == "__main__":
    main()
