import os

# Compilations are measured, too; `startup` alone names a cache.
os.environ.setdefault("XLA_PERSISTENT_CACHE_PATH", "")
