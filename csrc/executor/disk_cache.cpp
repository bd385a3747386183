#include "executor/disk_cache.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <sstream>
#include <thread>

#include <fcntl.h>
#include <sys/stat.h>
#include <torch/version.h>
#include <unistd.h>

#include "debug/metrics.h"
#include "executor/in_flight.h"
#include "executor/runtime.h"
#include "util/error.h"
#include "util/flags.h"
#include "util/hash.h"
#include "util/log.h"
#include "util/unlocked.h"

namespace torch_xla::executor {
namespace {

// A file is the magic, the key and its length, the executable's hash, the executable.
constexpr std::string_view kMagic = "torch_xla program 1\n";

std::atomic<bool> is_settled{false};

util::Hash128 hash_of(std::string_view bytes) { return util::Hasher().add_bytes(bytes).finish(); }

std::string hex(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char c : bytes) {
    text += kDigits[c >> 4];
    text += kDigits[c & 15];
  }
  return text;
}

// Code for the host's own processor is of no use to another one, which may share the folder.
std::string host_processor() {
  std::ifstream info("/proc/cpuinfo");
  std::string line, described;
  while (std::getline(info, line) && !line.empty()) {  // the first processor
    for (const char* field : {"model name", "flags", "Features", "CPU part"}) {
      if (line.starts_with(field)) described += line + "\n";
    }
  }
  return hash_of(described).hex() + " x" + std::to_string(std::thread::hardware_concurrency());
}

template <class T>
void append(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class T>
bool take(std::string_view& bytes, T& value) {
  if (bytes.size() < sizeof value) return false;
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return true;
}

std::string file_of_program(std::string_view key, std::string_view executable) {
  std::string bytes(kMagic);
  bytes.reserve(kMagic.size() + key.size() + executable.size() + 64);
  append(bytes, uint64_t{key.size()});
  bytes += key;
  append(bytes, hash_of(executable));
  bytes += executable;
  return bytes;
}

// The executable in a file of this key, if the file is whole.
std::optional<std::string_view> executable_in(std::string_view bytes, std::string_view key) {
  if (!bytes.starts_with(kMagic)) return std::nullopt;
  bytes.remove_prefix(kMagic.size());
  uint64_t key_size = 0;
  if (!take(bytes, key_size) || bytes.substr(0, key_size) != key) return std::nullopt;
  bytes.remove_prefix(key.size());
  util::Hash128 hash;
  if (!take(bytes, hash) || hash != hash_of(bytes)) return std::nullopt;
  return bytes;
}

// Writes a new file beside `path` and gives it that name: others see the old one or all of it.
// Returns the error number, 0 for none.
int write_whole(const std::string& path, std::string_view bytes) {
  const std::string temporary =
      path + "." + std::to_string(std::random_device()()) + std::to_string(getpid()) + ".tmp";
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return errno;
  int error = 0;
  while (!bytes.empty() && error == 0) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  if (::close(file) != 0 && error == 0) error = errno;  // where a full disk may first show
  if (error == 0 && ::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) ::unlink(temporary.c_str());
  return error;
}

// What keeps this process from reading in the folder, or 0.
int read_error(const std::string& folder) {
  if (::access(folder.c_str(), R_OK | X_OK) != 0) return errno;
  std::error_code ignored;
  return std::filesystem::is_directory(folder, ignored) ? 0 : ENOTDIR;
}

// What keeps this process from writing to the folder, or 0. Creates it. Only an attempt tells: a
// mount may be read-only, whatever the permissions say.
int write_error(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(folder).parent_path(), error);
  if (error) return error.value();
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return errno;
  const std::string probe = folder + "/probe" + std::to_string(getpid()) + ".tmp";
  const int failure = write_whole(probe, "");
  if (failure == 0) ::unlink(probe.c_str());
  return failure;
}

// Who can change a file or a folder, beside this user and root; empty if nobody can.
std::string others_who_write(const struct stat& info) {
  if (info.st_uid != ::geteuid() && info.st_uid != 0) {
    return "user " + std::to_string(info.st_uid) + ", whose it is";
  }
  return (info.st_mode & S_IWOTH) != 0   ? "everybody"
         : (info.st_mode & S_IWGRP) != 0 ? "group " + std::to_string(info.st_gid)
                                         : "";
}

// What writers that were killed have left behind.
void remove_old_temporaries(const std::string& folder) {
  namespace fs = std::filesystem;
  const auto old = fs::file_time_type::clock::now() - std::chrono::hours(1);
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    std::error_code error;
    if (entry.path().extension() != ".tmp" || !entry.is_regular_file(error)) continue;
    if (const auto written = entry.last_write_time(error); !error && written < old) {
      fs::remove(entry.path(), error);
    }
  }
}

// A file's contents, or why they are not used; empty where there is no file.
struct Contents {
  std::string bytes, problem;
};

// Opening a pipe, or reading a device, could wait for ever.
Contents read_whole(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return {"", errno == ENOENT ? "" : std::strerror(errno)};
  Contents contents;
  struct stat info = {};
  if (::fstat(file, &info) != 0) {
    contents.problem = std::strerror(errno);
  } else if (!S_ISREG(info.st_mode)) {
    contents.problem = "not a regular file";
  } else if (const std::string who = others_who_write(info); !who.empty()) {
    contents.problem = "a file that others can write to: " + who;
  } else {
    contents.bytes.resize(static_cast<size_t>(info.st_size));
    size_t filled = 0;
    while (filled < contents.bytes.size()) {
      const ssize_t count =
          ::read(file, contents.bytes.data() + filled, contents.bytes.size() - filled);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) break;  // cut short: its hash will show it
      filled += static_cast<size_t>(count);
    }
    contents.bytes.resize(filled);
    if (filled == 0) contents.problem = "an empty file";
  }
  ::close(file);
  return contents;
}

// The process may change its folder later.
std::string absolute(const std::string& folder) {
  if (folder.empty()) return folder;
  std::error_code ignored;
  const std::filesystem::path path = std::filesystem::absolute(folder, ignored);
  return (path.has_filename() ? path : path.parent_path()).string();  // without a slash at its end
}

[[noreturn]] void refuse(const char* expected, const std::string& folder, int error,
                         const char* advice) {
  util::fail(util::ErrorKind::Runtime, "persistent cache: expected ", expected, ", got '", folder,
             "' (", std::strerror(error), "). ", advice);
}

}  // namespace

DiskCache* DiskCache::get() {
  static const std::unique_ptr<DiskCache> cache = [] {
    const std::string folder = util::flag::XLA_PERSISTENT_CACHE_PATH();
    const bool read_only = util::flag::XLA_PERSISTENT_CACHE_READ_ONLY();
    auto made = folder.empty() ? nullptr : std::make_unique<DiskCache>(folder, read_only);
    is_settled = true;
    return made;
  }();
  return cache.get();
}

bool DiskCache::settled() { return is_settled; }

DiskCache::DiskCache(const std::string& folder, bool read_only)
    : folder_(absolute(folder)), read_only_(read_only) {
  if (read_only_) {
    if (const int error = read_error(folder_)) {
      refuse("a folder that can be read", folder_, error,
             "Fill it first, by a process that may write to it.");
    }
  } else if (const int error = write_error(folder_)) {
    refuse("a folder that can be written to", folder_, error,
           "Give another path, or readonly=True for a folder that others fill.");
  }
  struct stat info = {};
  if (::stat(folder_.c_str(), &info) == 0) {
    if (const std::string who = others_who_write(info); !who.empty()) {
      usable_ = false;
      TXLA_LOG(WARNING) << "persistent cache: expected a folder that only you can write to, since "
                           "its programs run in this process, got '"
                        << folder_ << "', which can be written to by " << who
                        << ". The cache is off. Take a folder of your own, or chmod go-w.";
      return;
    }
  }
  if (!read_only_) remove_old_temporaries(folder_);
}

std::string DiskCache::key_of(std::string_view program, const pjrt::CompileOptions& options) const {
  static const std::string host = host_processor();
  Runtime& runtime = Runtime::get();
  const pjrt::Client& client = runtime.client();
  pjrt::CompileOptions placed = options;
  if (movable_ && placed.device_ids.size() == 1) placed.device_ids.clear();
  std::error_code ignored;  // builds of one version differ in size, as good as always
  const auto plugin_size = std::filesystem::file_size(client.plugin().path(), ignored);

  std::ostringstream key;
  key << "torch_xla " << TORCH_XLA_VERSION << ", torch " << TORCH_VERSION << "\nplatform "
      << client.platform_name() << " " << client.platform_version() << "\nplugin PJRT "
      << client.plugin().api_major() << "." << client.plugin().api_minor() << ", " << plugin_size
      << " bytes\n";
  for (const int id : options.device_ids) {
    key << "device " << client.device_by_id(id).kind() << "\n";
  }
  if (runtime.device_type() == "CPU") key << "host " << host << "\n";
  key << util::flags::cache_key_text() << "options " << hex(placed.serialize()) << "\nprogram "
      << hash_of(program).hex() << ", " << program.size() << " bytes\n";
  return key.str();
}

std::string DiskCache::file_of(const std::string& key) const {
  return folder_ + "/" + hash_of(key).hex() + ".program";
}

void DiskCache::report(const std::string& problem) {
  if (reported_.exchange(true)) return;
  TXLA_LOG(WARNING) << "persistent cache: " << problem
                    << "\nFurther problems of this kind are only counted, in the metrics.";
}

void DiskCache::give_up(const pjrt::Error& error) {
  if (!usable_.exchange(false)) return;
  TXLA_LOG(WARNING) << "persistent cache: expected a plugin that serializes programs, got "
                    << error.what() << ". The cache is off; every process compiles.";
}

std::unique_ptr<pjrt::Executable> DiskCache::load(std::string_view program,
                                                  const pjrt::CompileOptions& options) {
  static const debug::Counter hits("PersistentCacheHit"), misses("PersistentCacheMiss");
  if (!usable_) return nullptr;
  const util::Unlocked unlocked;
  const std::string key = key_of(program, options);
  const std::string path = file_of(key);
  auto executable = load_file(path, key, options);
  if (executable != nullptr &&
      !std::ranges::equal(executable->devices(), options.device_ids, {}, &pjrt::Device::id)) {
    if (options.device_ids.size() == 1) movable_ = false;
    if (key_of(program, options) != key) return load(program, options);
    executable = nullptr;
  }
  if (executable != nullptr) {
    hits.add();
  } else {
    misses.add();
    TXLA_VLOG(1) << "not in the persistent cache, " << path << ":\n" << key;
  }
  return executable;
}

std::unique_ptr<pjrt::Executable> DiskCache::load_file(const std::string& path,
                                                       const std::string& key,
                                                       const pjrt::CompileOptions& options) {
  static const debug::Counter failures("PersistentCacheDeserializeFailure");
  static const debug::Metric time("PersistentCacheLoadTime");
  const Contents contents = read_whole(path);
  if (contents.bytes.empty() && contents.problem.empty()) return nullptr;
  const debug::TimedScope scope(time);
  const auto serialized = executable_in(contents.bytes, key);
  if (!serialized) {
    failures.add();
    report("expected a whole program in '" + path + "', got " +
           (contents.problem.empty() ? "something else" : contents.problem) + ". It is compiled.");
    return nullptr;
  }
  try {
    return Runtime::get().client().deserialize(*serialized, options);
  } catch (const pjrt::Error& error) {
    if (error.code() == PJRT_Error_Code_UNIMPLEMENTED) {
      give_up(error);
    } else {
      failures.add();
      report("the plugin cannot load '" + path + "', which is compiled: " + error.what());
    }
    return nullptr;
  }
}

void DiskCache::store(std::string_view program, const pjrt::CompileOptions& options,
                      const pjrt::Executable& executable) {
  static const debug::Counter failures("PersistentCacheStoreFailure");
  static const debug::Metric time("PersistentCacheStoreTime");
  if (read_only_ || !usable_) return;
  const util::Unlocked unlocked;
  const debug::TimedScope scope(time);
  const std::string key = key_of(program, options);
  const std::string path = file_of(key);
  try {
    const int error = write_whole(path, file_of_program(key, executable.serialize()));
    if (error == 0) return;
    failures.add();
    report("'" + path + "' could not be written: " + std::strerror(error));
  } catch (const pjrt::Error& error) {
    if (error.code() == PJRT_Error_Code_UNIMPLEMENTED) return give_up(error);
    failures.add();
    report(std::string("the plugin could not serialize a program: ") + error.what());
  }
}

}  // namespace torch_xla::executor
