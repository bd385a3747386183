// Huge pages for the large buffers of a plugin that computes in the host's memory.
// Such a plugin allocates the temporary memory of a program for each run and frees it after: the C
// library maps and unmaps it, and the kernel clears it again in pages of 4 KiB, one fault each.
// That can take as long as the program itself; in pages of 2 MiB it takes little.
#pragma once

#include <string>

namespace torch_xla::pjrt {

// From now on, large allocations by the library at `path`, which is loaded, ask for huge pages
// (madvise, which Linux obeys unless transparent huge pages are off). Returns whether it could: the
// library's table of imported functions must be writable. The plugin frees what it has as before.
bool use_huge_pages(const std::string& path);

}  // namespace torch_xla::pjrt
