// Allocates the large memory of a plugin that computes in the host's memory. Such a plugin
// allocates results and temporary memory for each run of a program and frees them after: the C
// library maps and unmaps them, and the kernel clears them again in pages of 4 KiB, one fault each.
// That can take as long as the program itself. These functions give large blocks in pages of 2 MiB
// and keep freed ones for the next run. The kernel may take the memory of kept blocks when it runs
// short, and before a new block is mapped, as many kept bytes are freed: no process has more of
// them than it once used at a time.
#pragma once

#include <cstddef>
#include <string>

namespace torch_xla::cpu {

// Makes the library at `path`, which is loaded, allocate and free large memory by the functions
// below. Returns whether it could: the library's table of imported functions must be writable.
bool use_large_blocks(const std::string& path);

// Smaller blocks, those of PyTorch's kernels too, are the C library's. It gives freed ones back to
// the kernel above limits that it raises by itself, up to 32 MiB for a block and 64 MiB for the end
// of a heap, when it sees a block of such a size freed. Makes it do so now, where nothing has set
// the limits (mallopt(3), M_MMAP_THRESHOLD).
void keep_small_blocks();

// These work like the C library's functions of these names; either side frees the other's blocks.
// They leave small blocks to the C library.
int posix_memalign_large(void** memory, size_t alignment, size_t size) noexcept;
void* aligned_alloc_large(size_t alignment, size_t size) noexcept;
void free_large(void* memory) noexcept;

// Return the bytes of kept blocks, and free these and what the C library keeps.
size_t kept_bytes();
void free_kept();

}  // namespace torch_xla::cpu
