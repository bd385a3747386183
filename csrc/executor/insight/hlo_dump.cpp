#include "executor/insight/hlo_dump.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "executor/run/in_flight.h"
#include "executor/run/runtime.h"
#include "pjrt/executable.h"
#include "util/error.h"
#include "util/flags.h"
#include "util/unlocked.h"

namespace torch_xla::executor {
namespace {

namespace fs = std::filesystem;

// A folder of our own that goes with its contents.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::error_code error;
    path_ = (fs::temp_directory_path(error) / "torch_xla_hlo_XXXXXX").string();
    TXLA_CHECK(
        !error && mkdtemp(path_.data()) != nullptr,
        "_get_xla_tensors_hlo: expected a folder for temporary files. Set TMPDIR to one that "
        "can be written to.");
  }
  ~TemporaryFolder() {
    std::error_code ignored;  // what is left over is in the folder for temporary files
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The contents of the first file, by name, with this ending: the program comes before what the
// plugin may compile for its own use.
std::string read_first(const std::string& folder, std::string_view ending) {
  std::string first;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().string();
    if (name.ends_with(ending) && (first.empty() || name < first)) first = name;
  }
  TXLA_CHECK_KIND(util::ErrorKind::NotImplemented, !first.empty(),
                  "_get_xla_tensors_hlo: expected the compiler of ", Runtime::get().device_type(),
                  " to write the program down (xla_dump_to), it has not. Use "
                  "torch_xla.core.xla_model.get_stablehlo.");
  std::ifstream file(first, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The module of a serialized xla.HloProto: its first field, with a key of one byte and a varint of
// its length.
std::string module_of(const std::string& hlo_proto) {
  constexpr char kKey = 1 << 3 | 2;
  size_t length = 0, at = 1;
  for (int shift = 0; at < hlo_proto.size(); shift += 7) {
    const auto byte = static_cast<unsigned char>(hlo_proto[at++]);
    length |= static_cast<size_t>(byte & 0x7f) << shift;
    if (byte < 0x80) break;
  }
  TXLA_CHECK(!hlo_proto.empty() && hlo_proto[0] == kKey && at + length <= hlo_proto.size(),
             "_get_xla_tensors_hlo: expected the compiler to write an HloProto that starts with "
             "its module. "
             "Use torch_xla.core.xla_model.get_stablehlo.");
  return hlo_proto.substr(at, length);
}

}  // namespace

HloDump hlo_of(const std::string& stablehlo, int device) {
  const TemporaryFolder folder;
  pjrt::CompileOptions options = compile_options_of(device);
  options.env_overrides["xla_dump_to"] = folder.path();
  options.env_overrides["xla_dump_hlo_as_text"] = true;
  options.env_overrides["xla_dump_hlo_as_proto"] = true;
  options.env_overrides["xla_dump_hlo_module_re"] = std::string(".*");
  options.env_overrides["xla_dump_compress_protos"] = false;
  try {
    const util::Unlocked unlocked;
    pjrt::Executable::compile(Runtime::get().client(), stablehlo, options);
  } catch (const pjrt::Error& e) {
    fail(e);
  }
  // The first part of the name after its number is the platform's.
  const bool optimized = util::flag::XLA_DUMP_POST_OPTIMIZATIONS();
  return {read_first(folder.path(),
                     optimized ? "after_optimizations.txt" : ".before_optimizations.txt"),
          module_of(read_first(folder.path(), ".before_optimizations.hlo.pb"))};
}

}  // namespace torch_xla::executor
