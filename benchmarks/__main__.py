"""All benchmarks: `python -m benchmarks`, or `make bench`."""

from benchmarks import memory, recording, training

if __name__ == "__main__":
    recording.main()
    training.main([])
    memory.main([])
