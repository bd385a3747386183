// Large memory of a plugin that computes in the host's memory.
// Such a plugin allocates results and the temporary memory of a program for each run and frees them
// after: the C library maps and unmaps them, and the kernel clears them again in pages of 4 KiB,
// one fault each. That can take as long as the program itself. Here large blocks come in pages of
// 2 MiB, and those that were freed are kept for the next run. A kept block is the kernel's where it
// needs memory, and a block that is newly mapped takes the place of kept ones of its size: no
// process has more of them than it once used at a time.
#pragma once

#include <cstddef>
#include <string>

namespace torch_xla::pjrt {

// From now on, the library at `path`, which is loaded, allocates and frees large memory by the
// functions below. Returns whether it could: the library's table of imported functions must be
// writable.
bool use_large_blocks(const std::string& path);

// As the C library's functions of these names, whose blocks they give and take; small ones are the
// C library's.
int posix_memalign_large(void** memory, size_t alignment, size_t size) noexcept;
void* aligned_alloc_large(size_t alignment, size_t size) noexcept;
void free_large(void* memory) noexcept;

// The bytes that are kept, and their end.
size_t kept_bytes();
void free_kept();

}  // namespace torch_xla::pjrt
