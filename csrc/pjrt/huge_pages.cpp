#include "pjrt/huge_pages.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>

namespace torch_xla::pjrt {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kLarge = 2 * kHugePage;

void advise(void* memory, size_t size) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t last = (begin + size) / kHugePage * kHugePage;
  // Advice: where it is not taken, small pages serve.
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

// The end of a large block would be small pages, hundreds of faults: where most of it is used
// anyhow, it takes a huge page whole.
size_t with_whole_end(size_t size) {
  const size_t end = size % kHugePage;
  return size >= 8 * kHugePage && end >= kHugePage / 4 ? size - end + kHugePage : size;
}

// What the library calls in place of the C library's functions of these names.

int posix_memalign_huge(void** memory, size_t alignment, size_t size) {
  if (size < kLarge) return posix_memalign(memory, alignment, size);
  size = with_whole_end(size);
  const int error = posix_memalign(memory, std::max(alignment, kHugePage), size);
  if (error == 0) advise(*memory, size);
  return error;
}

void* aligned_alloc_huge(size_t alignment, size_t size) {
  if (size < kLarge) return aligned_alloc(alignment, size);
  void* memory = nullptr;
  return posix_memalign_huge(&memory, alignment, size) == 0 ? memory : nullptr;
}

void* replacement(std::string_view function) {
  if (function == "posix_memalign") return reinterpret_cast<void*>(&posix_memalign_huge);
  if (function == "aligned_alloc") return reinterpret_cast<void*>(&aligned_alloc_huge);
  return nullptr;
}

// The part of a library that became read-only after loading.
struct ReadOnly {
  uintptr_t base;
  uintptr_t begin = 0, end = 0;
};

int find_read_only(dl_phdr_info* info, size_t, void* data) {
  auto& found = *static_cast<ReadOnly*>(data);
  if (info->dlpi_addr != found.base) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_GNU_RELRO) continue;
    found.begin = info->dlpi_addr + header.p_vaddr;
    found.end = found.begin + header.p_memsz;
  }
  return 1;
}

}  // namespace

bool use_huge_pages(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  link_map* map = nullptr;
  if (library == nullptr || dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return false;
  ReadOnly read_only{map->l_addr};
  dl_iterate_phdr(find_read_only, &read_only);

  // The table of imported functions: one entry for each, with the name of its symbol.
  const ElfW(Rela)* entries = nullptr;
  const ElfW(Sym)* symbols = nullptr;
  const char* names = nullptr;
  size_t bytes = 0;
  bool with_addend = false;
  for (const ElfW(Dyn)* d = map->l_ld; d->d_tag != DT_NULL; ++d) {
    if (d->d_tag == DT_JMPREL) entries = reinterpret_cast<const ElfW(Rela)*>(d->d_un.d_ptr);
    if (d->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(d->d_un.d_ptr);
    if (d->d_tag == DT_STRTAB) names = reinterpret_cast<const char*>(d->d_un.d_ptr);
    if (d->d_tag == DT_PLTRELSZ) bytes = d->d_un.d_val;
    if (d->d_tag == DT_PLTREL) with_addend = d->d_un.d_val == DT_RELA;
  }
  dlclose(library);
  if (entries == nullptr || symbols == nullptr || names == nullptr || !with_addend) return false;

  bool replaced = false;
  for (size_t i = 0; i < bytes / sizeof(ElfW(Rela)); ++i) {
    const size_t symbol = ELF64_R_SYM(entries[i].r_info);
    void* function = replacement(names + symbols[symbol].st_name);
    const uintptr_t slot = map->l_addr + entries[i].r_offset;
    if (function == nullptr || (slot >= read_only.begin && slot < read_only.end)) continue;
    __atomic_store_n(reinterpret_cast<void**>(slot), function, __ATOMIC_RELEASE);
    replaced = true;
  }
  return replaced;
}

}  // namespace torch_xla::pjrt
