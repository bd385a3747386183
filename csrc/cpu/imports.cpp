#include "cpu/imports.h"

#include <cstdint>

#include <dlfcn.h>
#include <link.h>

namespace torch_xla::cpu {
namespace {

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

bool replace_imports(const std::string& path, void* (*replacement)(std::string_view name)) {
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

}  // namespace torch_xla::cpu
