#include "executor/stored/program_file.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include <torch/version.h>

#include "executor/run/runtime.h"
#include "util/flags.h"

namespace torch_xla::executor {
namespace {

// A file is the magic, the key and its length, the executable's hash, the executable.
constexpr std::string_view kMagic = "torch_xla program 1\n";

// Programs for one device serve others of its kind, until the plugin shows that it does not move
// programs.
std::atomic<bool> movable = true;

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

// A program knows those of its devices that this process addresses.
bool runs_on(const pjrt::Executable& executable, std::vector<int> devices) {
  const pjrt::Client& client = Runtime::get().client();
  std::erase_if(devices, [&](int id) { return !client.device_by_id(id).addressable(); });
  return std::ranges::equal(executable.devices(), devices, {}, &pjrt::Device::id);
}

}  // namespace

ProgramKey key_of(std::string_view program, const pjrt::CompileOptions& options) {
  static const std::string host = host_processor();
  Runtime& runtime = Runtime::get();
  const pjrt::Client& client = runtime.client();
  pjrt::CompileOptions placed = options;
  if (movable && placed.device_ids.size() == 1) placed.device_ids.clear();
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
  const util::Hash128 hash = hash_of(key.str());
  return {key.str(), hash};
}

bool moves_programs() { return movable; }

std::string pack(const ProgramKey& key, const pjrt::Executable& executable) {
  const std::string serialized = executable.serialize();
  std::string bytes(kMagic);
  bytes.reserve(kMagic.size() + key.text.size() + serialized.size() + 64);
  append(bytes, uint64_t{key.text.size()});
  bytes += key.text;
  append(bytes, hash_of(serialized));
  bytes += serialized;
  return bytes;
}

std::string_view packed_in(std::string_view bytes, const ProgramKey& key) {
  if (!bytes.starts_with(kMagic)) return {};
  bytes.remove_prefix(kMagic.size());
  uint64_t key_size = 0;
  if (!take(bytes, key_size) || bytes.substr(0, key_size) != key.text) return {};
  bytes.remove_prefix(key.text.size());
  util::Hash128 hash;
  if (!take(bytes, hash) || hash != hash_of(bytes)) return {};
  return bytes;
}

std::unique_ptr<pjrt::Executable> load_packed(std::string_view packed,
                                              const pjrt::CompileOptions& options) {
  auto executable = pjrt::Executable::deserialize(Runtime::get().client(), packed, options);
  if (runs_on(*executable, options.device_ids)) return executable;
  if (options.device_ids.size() == 1) movable = false;
  return nullptr;
}

}  // namespace torch_xla::executor
