#include "cpu/large_blocks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <mutex>

#include <malloc.h>
#include <sys/mman.h>

#include "cpu/imports.h"
#include "util/fork_mutex.h"

namespace torch_xla::cpu {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kLarge = 2 * kHugePage;

// Advice on the huge pages that lie wholly in the block; where it is not taken, nothing is lost.
void advise(void* memory, size_t size, int advice) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t last = (begin + size) / kHugePage * kHugePage;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, advice);
}

// The end of a large block would be small pages, hundreds of faults: where most of it is used
// anyhow, it takes a huge page whole.
size_t with_whole_end(size_t size) {
  const size_t end = size % kHugePage;
  return size >= 8 * kHugePage && end >= kHugePage / 4 ? size - end + kHugePage : size;
}

// Returns whether blocks that begin with a huge page have this alignment.
bool suits(size_t alignment) { return std::has_single_bit(alignment) && alignment <= kHugePage; }

// The freed blocks that are kept, the oldest first. An array of its own: nothing may allocate here.
class FreeList {
 public:
  // A block of at least `size` bytes, and not much more; null where there is none. What the C
  // library says that a block holds may be a huge page more than it was asked for.
  void* take(size_t size) {
    const size_t most = size + size / 4 + kHugePage;
    const std::lock_guard lock(mutex_);
    size_t best = count_;
    for (size_t i = 0; i < count_; ++i) {
      if (blocks_[i].size < size || blocks_[i].size > most) continue;
      if (best == count_ || blocks_[i].size <= blocks_[best].size) best = i;
    }
    return best == count_ ? nullptr : remove(best).memory;
  }

  void put(void* memory, size_t size) {
    void* oldest = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (count_ == blocks_.size()) oldest = remove(0).memory;
      blocks_[count_++] = {memory, size};
      bytes_ += size;
    }
    std::free(oldest);
  }

  // Frees the oldest, at least `size` bytes of them.
  void free(size_t size) {
    for (size_t freed = 0; freed < size;) {
      Block block;
      {
        const std::lock_guard lock(mutex_);
        if (count_ == 0) return;
        block = remove(0);
      }
      std::free(block.memory);
      freed += block.size;
    }
  }

  size_t bytes() {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }

 private:
  struct Block {
    void* memory = nullptr;
    size_t size = 0;
  };

  Block remove(size_t i) {
    const Block block = blocks_[i];
    std::copy(blocks_.begin() + i + 1, blocks_.begin() + count_, blocks_.begin() + i);
    --count_;
    bytes_ -= block.size;
    return block;
  }

  util::ForkMutex mutex_;
  std::array<Block, 256> blocks_;
  size_t count_ = 0, bytes_ = 0;
};

FreeList& kept() {
  static auto& blocks = *new FreeList;  // the plugin's threads outlive static objects
  return blocks;
}

void* replacement(std::string_view function) {
  if (function == "posix_memalign") return reinterpret_cast<void*>(&posix_memalign_large);
  if (function == "aligned_alloc") return reinterpret_cast<void*>(&aligned_alloc_large);
  if (function == "free") return reinterpret_cast<void*>(&free_large);
  return nullptr;
}

}  // namespace

bool use_large_blocks(const std::string& path) {
  kept();  // made here, and not in a child or while memory is short
  return replace_imports(path, replacement);
}

void keep_small_blocks() {
  constexpr size_t kLimit = size_t{32} << 20, kHeader = 4096;
  void* volatile block = std::malloc(kLimit - 2 * kHeader);  // the pair has an effect
  std::free(block);
}

int posix_memalign_large(void** memory, size_t alignment, size_t size) noexcept {
  if (size < kLarge || !suits(alignment)) return posix_memalign(memory, alignment, size);
  size = with_whole_end(size);
  if (void* block = kept().take(size)) {
    *memory = block;
    return 0;
  }
  kept().free(size);
  const int error = posix_memalign(memory, kHugePage, size);
  if (error == 0) advise(*memory, size, MADV_HUGEPAGE);
  return error;
}

void* aligned_alloc_large(size_t alignment, size_t size) noexcept {
  if (size < kLarge || !suits(alignment)) return aligned_alloc(alignment, size);
  void* memory = nullptr;
  return posix_memalign_large(&memory, alignment, size) == 0 ? memory : nullptr;
}

void free_large(void* memory) noexcept {
  // Any block of this size and alignment serves, whoever made it.
  const bool aligned = reinterpret_cast<uintptr_t>(memory) % kHugePage == 0;
  const size_t size = aligned && memory != nullptr ? malloc_usable_size(memory) : 0;
  if (size < kLarge) return std::free(memory);
  advise(memory, size, MADV_FREE);
  kept().put(memory, size);
}

size_t kept_bytes() { return kept().bytes(); }
void free_kept() {
  kept().free(std::numeric_limits<size_t>::max());
  malloc_trim(0);
}

}  // namespace torch_xla::cpu
