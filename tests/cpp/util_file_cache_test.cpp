#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "util/file_cache.h"

namespace torch_xla::util {
namespace {

namespace fs = std::filesystem;

// Not zero, the key of the file that open() tries to write.
Hash128 key(uint64_t n) { return {n, 1}; }

class FileCacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "file_cache_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string folder() const { return (root_ / "cache").string(); }

  // The contents of key(n) fit their key.
  static std::string contents(uint64_t n, size_t size = 100) {
    return std::string(size, static_cast<char>('a' + n % 26));
  }
  // Lets the file of key(n) be last used `seconds` ago.
  static void age(const FileCache& cache, uint64_t n, int seconds) {
    fs::last_write_time(cache.path_of(key(n)),
                        fs::file_time_type::clock::now() - std::chrono::seconds(seconds));
  }
  static std::vector<uint64_t> kept(const FileCache& cache, uint64_t count) {
    std::vector<uint64_t> found;
    for (uint64_t n = 0; n < count; ++n) {
      if (fs::exists(cache.path_of(key(n)))) found.push_back(n);
    }
    return found;
  }
  static int64_t bytes_in(const std::string& folder) {
    int64_t total = 0;
    for (const auto& entry : fs::directory_iterator(folder)) {
      std::error_code gone;
      if (const auto size = entry.file_size(gone); !gone) total += static_cast<int64_t>(size);
    }
    return total;
  }

  fs::path root_;
};

TEST_F(FileCacheTest, KeepsContentsByKey) {
  FileCache cache(folder(), false, -1);
  ASSERT_EQ(cache.open(), 0);
  EXPECT_EQ(cache.read(key(1)).bytes, "");
  EXPECT_EQ(cache.read(key(1)).problem, "");
  EXPECT_EQ(cache.write(key(1), "one"), 0);
  EXPECT_EQ(cache.write(key(2), "two"), 0);
  EXPECT_EQ(cache.write(key(1), "one anew"), 0);
  EXPECT_EQ(cache.read(key(1)).bytes, "one anew");
  EXPECT_EQ(FileCache(folder(), true, 0).read(key(2)).bytes, "two");
}

TEST_F(FileCacheTest, OnlyItsUserCanWriteWhateverTheMask) {
  for (const mode_t mask : {mode_t{0}, mode_t{0777}}) {
    const std::string folder = (root_ / std::to_string(mask) / "inner").string();
    if (mask != 0) fs::create_directory(root_ / std::to_string(mask));
    const mode_t before = ::umask(mask);
    FileCache cache(folder, false, -1);
    const int opened = cache.open();
    const int written = cache.write(key(1), "one");
    ::umask(before);
    ASSERT_EQ(opened, 0);
    ASSERT_EQ(written, 0);
    EXPECT_EQ(fs::status(folder).permissions(), fs::perms::owner_all);
    EXPECT_EQ(fs::status(cache.path_of(key(1))).permissions(),
              fs::perms::owner_read | fs::perms::owner_write);
    EXPECT_EQ(cache.others_who_write(), "");
    EXPECT_EQ(cache.read(key(1)).bytes, "one");
  }
  EXPECT_EQ(
      fs::status(root_ / "0").permissions() & (fs::perms::group_write | fs::perms::others_write),
      fs::perms::none);
}

TEST_F(FileCacheTest, TheLeastRecentlyUsedGo) {
  constexpr int64_t kBound = 1600;  // at 100 bytes, 15 files that leave room for what comes next
  FileCache first(folder(), false, kBound);
  ASSERT_EQ(first.open(), 0);
  for (uint64_t n = 0; n < 15; ++n) {
    ASSERT_EQ(first.write(key(n), contents(n)), 0);
    age(first, n, 100 - static_cast<int>(n));
  }
  EXPECT_EQ(kept(first, 15).size(), 15u);
  EXPECT_EQ(first.read(key(0)).bytes, contents(0));  // used again
  FileCache(folder(), true, kBound).read(key(1));    // one that changes nothing
  FileCache second(folder(), false, kBound);
  ASSERT_EQ(second.write(key(15), contents(15)), 0);
  EXPECT_EQ(kept(first, 16),
            (std::vector<uint64_t>{0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}));
}

TEST_F(FileCacheTest, SmallFilesDoNotBecomeTooMany) {
  constexpr int kMost = 1 << 14;
  FileCache cache(folder(), false, int64_t{kMost} * 1000), unbounded(folder(), false, -1);
  ASSERT_EQ(cache.open(), 0);
  for (uint64_t n = 0; n < kMost + 500; ++n) ASSERT_EQ(unbounded.write(key(n), "x"), 0);
  EXPECT_EQ(kept(cache, kMost + 500).size(), kMost + 500u);
  ASSERT_EQ(cache.write(key(kMost + 500), "x"), 0);
  const size_t left = kept(cache, kMost + 501).size();
  EXPECT_LE(left, size_t{kMost});
  EXPECT_GT(left, size_t{kMost} * 9 / 10);
}

TEST_F(FileCacheTest, OneProcessStaysWithinTheBound) {
  constexpr int64_t kBound = 10'000;
  FileCache cache(folder(), false, kBound);
  ASSERT_EQ(cache.open(), 0);
  for (uint64_t n = 0; n < 300; ++n) {
    ASSERT_EQ(cache.write(key(n), contents(n, 10 + 37 * n % 1000)), 0);
    EXPECT_LE(bytes_in(folder()), kBound);
    EXPECT_EQ(cache.read(key(n)).bytes, contents(n, 10 + 37 * n % 1000));
  }
  EXPECT_GT(bytes_in(folder()), kBound / 2);
}

TEST_F(FileCacheTest, WhatIsTooLargeIsNotWrittenAndWhatJustFitsStays) {
  FileCache cache(folder(), false, 1000);
  ASSERT_EQ(cache.open(), 0);
  EXPECT_EQ(cache.write(key(1), contents(1, 1001)), EFBIG);
  EXPECT_EQ(cache.write(key(2), contents(2, 1000)), 0);
  EXPECT_EQ(cache.write(key(3), contents(3, 1000)), 0);
  EXPECT_EQ(kept(cache, 4), (std::vector<uint64_t>{3}));
  FileCache nothing(folder(), false, 0);
  EXPECT_EQ(nothing.write(key(4), "x"), EFBIG);
}

TEST_F(FileCacheTest, OtherFilesStayAndOldDraftsGo) {
  FileCache cache(folder(), false, 1000);
  ASSERT_EQ(cache.open(), 0);
  const std::string entry = fs::path(cache.path_of(key(7))).filename();
  const std::vector<std::string> foreign = {
      "notes",      "my.program",          "a.tmp", entry.substr(0, 32), "x" + entry,
      entry + ".1", "0" + entry + ".1.tmp"};
  const std::string old_draft = entry + ".1.tmp", new_draft = entry + ".2.tmp";
  std::vector<std::string> all = foreign;
  all.insert(all.end(), {old_draft, new_draft});
  for (const std::string& name : all) {
    std::ofstream(folder() + "/" + name) << contents(1, 5000);
    if (name == new_draft) continue;
    fs::last_write_time(folder() + "/" + name,
                        fs::file_time_type::clock::now() - std::chrono::hours(2));
  }
  fs::create_directory(cache.path_of(key(8)));
  ASSERT_EQ(cache.write(key(1), contents(1)), 0);
  for (const std::string& name : foreign) EXPECT_TRUE(fs::exists(folder() + "/" + name)) << name;
  EXPECT_TRUE(fs::exists(cache.path_of(key(8))));
  EXPECT_FALSE(fs::exists(folder() + "/" + old_draft));
  EXPECT_TRUE(fs::exists(folder() + "/" + new_draft));
  EXPECT_EQ(cache.read(key(1)).bytes, contents(1));
}

// Eight processes write, read and remove at once; what is read is right.
TEST_F(FileCacheTest, ProcessesShareATightFolder) {
  constexpr int64_t kBound = 20'000;
  constexpr int kProcesses = 8;
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      FileCache cache(folder(), false, kBound);
      bool right = cache.open() == 0;
      for (uint64_t i = 0; i < 500 && right; ++i) {
        const uint64_t n = (i * 31 + static_cast<uint64_t>(p) * 17) % 60;
        const auto found = cache.read(key(n));
        right = found.problem.empty() &&
                (found.bytes.empty() ? cache.write(key(n), contents(n, 700 + n)) == 0
                                     : found.bytes == contents(n, 700 + n));
      }
      ::_exit(right ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  // Each may have written its share since it last looked.
  EXPECT_LE(bytes_in(folder()), kBound + kProcesses * (kBound / 64 + 760));
  FileCache last(folder(), false, kBound);
  ASSERT_EQ(last.write(key(99), contents(99)), 0);
  EXPECT_LE(bytes_in(folder()), kBound);
}

TEST_F(FileCacheTest, ThreadsShareOneCache) {
  FileCache cache(folder(), false, 20'000);
  ASSERT_EQ(cache.open(), 0);
  std::atomic<int> wrong = 0;
  {
    std::vector<std::jthread> threads;
    for (uint64_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (uint64_t i = 0; i < 300; ++i) {
          const uint64_t n = (i * 31 + t * 17) % 60;
          const auto found = cache.read(key(n));
          const bool right = found.bytes.empty() ? cache.write(key(n), contents(n, 700)) == 0
                                                 : found.bytes == contents(n, 700);
          if (!right) ++wrong;
        }
      });
    }
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(bytes_in(folder()), 20'000 + 4 * 700);
}

TEST_F(FileCacheTest, WhatCannotBeUsedSaysWhy) {
  EXPECT_EQ(FileCache("", false, -1).open(), ENOENT);
  EXPECT_EQ(FileCache(folder(), true, -1).open(), ENOENT);
  std::ofstream(folder()) << "a file";
  EXPECT_EQ(FileCache(folder(), false, -1).open(), ENOTDIR);
  EXPECT_EQ(FileCache(folder() + "/inside", false, -1).open(), ENOTDIR);
  EXPECT_EQ(FileCache(folder(), true, -1).open(), ENOTDIR);
}

}  // namespace
}  // namespace torch_xla::util
