"""All benchmarks: `python -m benchmarks`, or `make bench`."""

from benchmarks import memory, models, recording

if __name__ == "__main__":
    recording.main()
    models.main([])
    memory.main([])
