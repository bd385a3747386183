#include "executor/compile/disk_cache.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include <sys/stat.h>
#include <torch/version.h>
#include <unistd.h>

#include "debug/metrics.h"
#include "executor/run/in_flight.h"
#include "executor/run/runtime.h"
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

namespace {

// A program knows those of its devices that this process addresses.
bool runs_on(const pjrt::Executable& executable, std::vector<int> devices) {
  const pjrt::Client& client = Runtime::get().client();
  std::erase_if(devices, [&](int id) { return !client.device_by_id(id).addressable(); });
  return std::ranges::equal(executable.devices(), devices, {}, &pjrt::Device::id);
}

}  // namespace

DiskCache::Loaded DiskCache::load(std::string_view program, const pjrt::CompileOptions& options) {
  static const debug::Counter hits("PersistentCacheHit"), misses("PersistentCacheMiss");
  if (!usable_) return {};
  const util::Unlocked unlocked;
  const std::string key = key_of(program, options);
  auto executable = load_file(key, options);
  if (executable != nullptr && !runs_on(*executable, options.device_ids)) {
    if (options.device_ids.size() == 1) movable_ = false;
    if (key_of(program, options) != key) return load(program, options);
    executable = nullptr;
  }
  std::string file = files_.path_of(hash_of(key));
  if (executable == nullptr) {
    misses.add();
    TXLA_VLOG(1) << "not in the persistent cache, " << file << ":\n" << key;
    return {};
  }
  hits.add();
  return {std::move(executable), std::move(file)};
}

std::unique_ptr<pjrt::Executable> DiskCache::load_file(const std::string& key,
                                                       const pjrt::CompileOptions& options) {
  static const debug::Counter failures("PersistentCacheDeserializeFailure");
  static const debug::Metric time("PersistentCacheLoadTime");
  const util::Hash128 name = hash_of(key);
  const util::FileCache::Contents contents = files_.read(name);
  if (contents.bytes.empty() && contents.problem.empty()) return nullptr;
  const debug::TimedScope scope(time);
  const auto serialized = executable_in(contents.bytes, key);
  if (!serialized) {
    failures.add();
    report("expected a whole program in '" + files_.path_of(name) + "', got " +
           (contents.problem.empty() ? "something else" : contents.problem) + ". It is compiled.");
    return nullptr;
  }
  try {
    return pjrt::Executable::deserialize(Runtime::get().client(), *serialized, options);
  } catch (const pjrt::Error& error) {
    if (error.code() == PJRT_Error_Code_UNIMPLEMENTED) {
      give_up(error);
    } else {
      failures.add();
      report("the plugin cannot load '" + files_.path_of(name) +
             "', which is compiled: " + error.what());
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
  const util::Hash128 name = hash_of(key);
  try {
    const int error = files_.write(name, file_of_program(key, executable.serialize()));
    if (error == 0) return;
    failures.add();
    report("'" + files_.path_of(name) + "' could not be written: " + std::strerror(error));
  } catch (const pjrt::Error& error) {
    if (error.code() == PJRT_Error_Code_UNIMPLEMENTED) return give_up(error);
    failures.add();
    report(std::string("the plugin could not serialize a program: ") + error.what());
  }
}

}  // namespace torch_xla::executor
