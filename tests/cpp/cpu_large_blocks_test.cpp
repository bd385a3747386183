#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <malloc.h>

#include "cpu/large_blocks.h"

namespace torch_xla::cpu {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

void* allocate(size_t size) {
  void* memory = nullptr;
  EXPECT_EQ(posix_memalign_large(&memory, 64, size), 0);
  std::memset(memory, 1, std::min(size, kMiB));
  return memory;
}

struct PjrtLargeBlocks : testing::Test {
  void SetUp() override {
    free_kept();
    EXPECT_EQ(kept_bytes(), 0u);
  }
};

TEST_F(PjrtLargeBlocks, AFreedBlockIsTheNextOfItsSize) {
  void* first = allocate(32 * kMiB);
  free_large(first);
  EXPECT_GE(kept_bytes(), 32 * kMiB);
  void* second = allocate(30 * kMiB);
  EXPECT_EQ(second, first);
  EXPECT_EQ(kept_bytes(), 0u);
  free_large(second);
}

TEST_F(PjrtLargeBlocks, BlocksOfAllSizesAreTakenAgain) {
  for (size_t size = 4 * kMiB; size < 40 * kMiB; size += 3 * kMiB / 2) {
    void* first = allocate(size);
    free_large(first);
    EXPECT_EQ(allocate(size), first) << size;
    free_large(first);
    SetUp();
  }
}

TEST_F(PjrtLargeBlocks, TheSmallestThatFitsIsTaken) {
  void* large = allocate(100 * kMiB);
  void* small = allocate(90 * kMiB);
  free_large(large);
  free_large(small);
  EXPECT_EQ(allocate(85 * kMiB), small);
  EXPECT_EQ(allocate(85 * kMiB), large);
  free_large(small);
  free_large(large);
}

TEST_F(PjrtLargeBlocks, AMuchLargerBlockIsNotTakenForASmallOne) {
  void* large = allocate(64 * kMiB);
  free_large(large);
  void* small = allocate(16 * kMiB);
  EXPECT_NE(small, large);
  free_large(small);
}

TEST_F(PjrtLargeBlocks, ANewBlockTakesThePlaceOfKeptOnes) {
  for (const size_t size : {40, 60, 80}) free_large(allocate(size * kMiB));
  const size_t before = kept_bytes();
  EXPECT_GE(before, 80 * kMiB);
  void* block = allocate(200 * kMiB);  // none of them
  EXPECT_EQ(kept_bytes(), 0u);
  free_large(block);
}

TEST_F(PjrtLargeBlocks, SmallMemoryIsTheCLibrarys) {
  void* small = allocate(1000);
  free_large(small);
  free_large(nullptr);
  // Where a sanitizer's malloc happens to align a block, that serves as well as ours.
  void* other = std::malloc(8 * kMiB);
  const bool serves = reinterpret_cast<uintptr_t>(other) % (2 * kMiB) == 0;
  free_large(other);
  EXPECT_EQ(kept_bytes() != 0, serves);
  void* aligned = aligned_alloc_large(64, 640);
  std::memset(aligned, 1, 640);
  free_large(aligned);
  void* pages = nullptr;
  EXPECT_EQ(posix_memalign_large(&pages, 16 * kMiB, 8 * kMiB), 0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(pages) % (16 * kMiB), 0u);
  std::free(pages);
  EXPECT_EQ(posix_memalign_large(&pages, 3, 8 * kMiB), EINVAL);
}

TEST_F(PjrtLargeBlocks, AFreedBlockIsKeptOnceAndNoMoreThanTheTableHolds) {
  std::vector<void*> blocks;
  for (int i = 0; i < 300; ++i) {
    void* memory = nullptr;
    ASSERT_EQ(posix_memalign_large(&memory, 64, 4 * kMiB), 0);
    blocks.push_back(memory);
  }
  EXPECT_EQ(std::set<void*>(blocks.begin(), blocks.end()).size(), blocks.size());
  size_t bytes = 0;
  for (void* memory : blocks) bytes += malloc_usable_size(memory);
  for (void* memory : blocks) free_large(memory);
  EXPECT_GE(kept_bytes(), 256 * 4 * kMiB);
  EXPECT_LT(kept_bytes(), bytes);
}

TEST_F(PjrtLargeBlocks, ThreadsHaveBlocksOfTheirOwn) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) {
        const size_t size = (4 + (t + i) % 5) * kMiB;
        auto* block = static_cast<unsigned char*>(allocate(size));
        block[0] = block[size - 1] = static_cast<unsigned char>(t);
        std::this_thread::yield();
        EXPECT_EQ(block[0], t);
        EXPECT_EQ(block[size - 1], t);
        free_large(block);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace torch_xla::cpu
