#include "executor/stored/disk_cache.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

#include "debug/metrics.h"
#include "util/error.h"
#include "util/flags.h"
#include "util/log.h"
#include "util/unlocked.h"

namespace torch_xla::executor {
namespace {

std::atomic<bool> is_settled{false};

// The process may change its folder later.
std::string absolute(const std::string& folder) {
  if (folder.empty()) return folder;
  std::error_code ignored;
  const std::filesystem::path path = std::filesystem::absolute(folder, ignored);
  return (path.has_filename() ? path : path.parent_path()).string();  // without a slash at its end
}

// Returns the folder among the user's caches, or "" where that is not said, or another user's: what
// root creates there under sudo would be in that user's way.
std::string folder_of_user() {
  std::filesystem::path caches = util::flag::XDG_CACHE_HOME();
  if (!caches.is_absolute()) caches = std::filesystem::path(util::flag::HOME()) / ".cache";
  if (!caches.is_absolute()) return "";
  std::filesystem::path there = caches;
  struct stat info = {};
  while (::stat(there.c_str(), &info) != 0 && there != there.root_path()) {
    there = there.parent_path();
  }
  if (info.st_uid != ::geteuid() && info.st_uid != 0) return "";
  return caches / "torch_xla";
}

}  // namespace

DiskCache* DiskCache::get() {
  static const std::unique_ptr<DiskCache> cache = [] {
    std::optional<std::string> folder = util::flag::XLA_PERSISTENT_CACHE_PATH();
    const bool named = folder.has_value();
    if (!named) folder = folder_of_user();
    if (!named && folder->empty()) {
      TXLA_LOG(INFO) << "persistent cache: expected a folder of this user's in HOME or "
                        "XDG_CACHE_HOME, got none. There is no cache.";
    }
    const bool read_only = util::flag::XLA_PERSISTENT_CACHE_READ_ONLY();
    auto made = folder->empty() ? nullptr : std::make_unique<DiskCache>(*folder, read_only, named);
    is_settled = true;
    return made;
  }();
  return cache.get();
}

bool DiskCache::settled() { return is_settled; }

DiskCache::DiskCache(const std::string& folder, bool read_only, bool named)
    : read_only_(read_only),
      files_(absolute(folder), read_only, util::flag::XLA_PERSISTENT_CACHE_SIZE()) {
  if (const int error = files_.open()) {
    usable_ = false;
    const std::string problem = util::concat(
        "persistent cache: expected a folder that can be ", read_only ? "read" : "written to",
        ", got '", files_.folder(), "' (", std::strerror(error), "). ",
        read_only ? "Fill it first, by a process that may write to it."
                  : "Give another path, or readonly=True for a folder that others fill.");
    if (named) util::fail(util::ErrorKind::Runtime, problem);
    TXLA_LOG(INFO) << problem;
  } else if (const std::string who = files_.others_who_write(); !who.empty()) {
    usable_ = false;
    TXLA_LOG(WARNING) << "persistent cache: expected a folder that only you can write to, since "
                         "its programs run in this process, got '"
                      << files_.folder() << "', which can be written to by " << who
                      << ". The cache is off. Take a folder of your own, or chmod go-w.";
  }
}

void DiskCache::report(const std::string& problem) {
  if (reported_.exchange(true)) return;
  TXLA_LOG(WARNING) << "persistent cache: " << problem
                    << "\nFurther problems of this kind are only counted, in the metrics.";
}

void DiskCache::cannot_pack(const pjrt::Error& error) {
  static const debug::Counter failures("PersistentCacheStoreFailure");
  if (error.code() == PJRT_Error_Code_UNIMPLEMENTED) return give_up(error);
  failures.add();
  report(std::string("the plugin could not serialize a program: ") + error.what());
}

void DiskCache::give_up(const pjrt::Error& error) {
  if (!usable_.exchange(false)) return;
  TXLA_LOG(WARNING) << "persistent cache: expected a plugin that serializes programs, got "
                    << error.what() << ". The cache is off; every process compiles.";
}

std::string DiskCache::place() const {
  struct stat info = {};
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::string host;
  if (!usable_ || ::stat(files_.folder().c_str(), &info) != 0 || !(boot >> host)) return "";
  return util::concat(host, " ", info.st_dev, " ", info.st_ino);
}

DiskCache::Loaded DiskCache::load(std::string_view program, const pjrt::CompileOptions& options) {
  static const debug::Counter hits("PersistentCacheHit"), misses("PersistentCacheMiss");
  if (!usable_) return {};
  const util::Unlocked unlocked;
  const bool moved = moves_programs();
  ProgramKey key = key_of(program, options);
  auto executable = load_file(key, options);
  if (executable == nullptr && moves_programs() != moved) {
    key = key_of(program, options);
    executable = load_file(key, options);
  }
  std::string file = files_.path_of(key.hash);
  if (executable == nullptr) {
    misses.add();
    TXLA_VLOG(1) << "not in the persistent cache, " << file << ":\n" << key.text;
    return {.key = std::move(key)};
  }
  hits.add();
  return {std::move(executable), std::move(file), std::move(key)};
}

std::unique_ptr<pjrt::Executable> DiskCache::load_file(const ProgramKey& key,
                                                       const pjrt::CompileOptions& options) {
  static const debug::Counter failures("PersistentCacheDeserializeFailure");
  static const debug::Metric time("PersistentCacheLoadTime");
  const util::FileCache::Contents contents = files_.read(key.hash);
  if (contents.bytes.empty() && contents.problem.empty()) return nullptr;
  const debug::TimedScope scope(time);
  const std::string_view packed = packed_in(contents.bytes, key);
  if (packed.empty()) {
    failures.add();
    report("expected a whole program in '" + files_.path_of(key.hash) + "', got " +
           (contents.problem.empty() ? "something else" : contents.problem) + ". It is compiled.");
    return nullptr;
  }
  try {
    return load_packed(packed, options);
  } catch (const pjrt::Error& error) {
    if (error.code() == PJRT_Error_Code_UNIMPLEMENTED) {
      give_up(error);
    } else {
      failures.add();
      report("the plugin cannot load '" + files_.path_of(key.hash) +
             "', which is compiled: " + error.what());
    }
    return nullptr;
  }
}

bool DiskCache::store(const ProgramKey& key, std::string_view bytes) {
  static const debug::Counter failures("PersistentCacheStoreFailure");
  if (!is_written()) return false;
  const util::Unlocked unlocked;
  const int error = files_.write(key.hash, bytes);
  if (error == 0) return true;
  failures.add();
  report("'" + files_.path_of(key.hash) + "' could not be written: " + std::strerror(error));
  return false;
}

}  // namespace torch_xla::executor
