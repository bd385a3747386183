// Trains on with a saved step, on any PJRT plugin: docs/saved_steps.md.

#include <charconv>
#include <chrono>
#include <iostream>
#include <optional>

#include "saved_step.h"

namespace runner {
namespace {

constexpr const char* kUsage =
    "usage: step_runner --plugin LIBRARY FOLDER [--steps N] [--data FILE] [--state FILE]\n"
    "                   [--save FILE]\n"
    "  --plugin LIBRARY  the PJRT plugin, a shared library\n"
    "  FOLDER            what torch_xla.saved_step.save has written\n"
    "  --steps N         how many steps to run; 1 by default\n"
    "  --data FILE       safetensors of batches by argument; by default the step's example\n"
    "  --state FILE      begins with this state, and not with the folder's\n"
    "  --save FILE       writes the state after the last step\n";

struct Options {
  std::string plugin, folder, data, state, save;
  int64_t steps = 1;
};

std::optional<Options> parse(int argc, char** argv) {
  Options options;
  std::string steps = "1";
  const std::map<std::string_view, std::string*> texts = {
      {"--plugin", &options.plugin}, {"--steps", &steps},       {"--data", &options.data},
      {"--state", &options.state},   {"--save", &options.save},
  };
  for (int i = 1; i < argc; ++i) {
    const auto text = texts.find(argv[i]);
    const bool is_option = text != texts.end();
    std::string& value = is_option ? *text->second : options.folder;
    if ((is_option && ++i == argc) || (!is_option && !value.empty())) return std::nullopt;
    value = argv[i];
  }
  const char* end = steps.data() + steps.size();
  const auto [rest, error] = std::from_chars(steps.data(), end, options.steps);
  const bool is_number = rest == end && error == std::errc() && options.steps >= 0;
  if (!is_number || options.plugin.empty() || options.folder.empty()) return std::nullopt;
  return options;
}

// The arguments of the steps, batch after batch.
class Batches {
 public:
  // `stacked`: each tensor of the file has batches as its first dimension.
  Batches(const std::filesystem::path& path, bool stacked, const SavedStep& step) : file_(path) {
    for (const SavedStep::Slot& slot : step.inputs()) {
      if (slot.kind != SavedStep::Slot::Kind::Argument) continue;
      const Tensor& all = file_.at(slot.name);
      Type expected = slot.type;
      if (stacked) {
        const std::vector<int64_t>& sizes = all.type.shape;
        if (tensors_.empty()) count_ = sizes.empty() ? 0 : sizes[0];
        if (count_ == 0) fail(path.string(), ": expected batches of ", slot.name, ", found none");
        expected.shape.insert(expected.shape.begin(), count_);
      }
      file_.check(slot.name, expected);
      tensors_.push_back({slot.type, all.bytes});
    }
  }

  std::vector<Tensor> of_step(int64_t step) const {
    std::vector<Tensor> batch = tensors_;
    for (Tensor& tensor : batch) {
      const size_t size = tensor.type.bytes();
      tensor.bytes = tensor.bytes.subspan(static_cast<size_t>(step % count_) * size, size);
    }
    return batch;
  }

 private:
  TensorFile file_;
  std::vector<Tensor> tensors_;  // of one batch's type, with the bytes of all
  int64_t count_ = 1;
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void run(const Options& options) {
  using namespace torch_xla::pjrt;
  SavedStep step(options.folder, options.state);
  const bool has_data = !options.data.empty();
  const std::string data = has_data ? options.data : options.folder + "/example.safetensors";
  const Batches batches(data, has_data, step);
  const auto client = Client::create(Plugin::load(options.plugin));
  const double start = now();
  step.begin(client);
  const double ready = now();
  for (int64_t i = 0; i < options.steps; ++i) {
    std::cout << "step " << i + 1 << ":";
    for (const SavedStep::Copied& result : step.run(batches.of_step(i))) {
      std::cout << " " << result.name << " " << elements_of({result.type, result.bytes});
    }
    std::cout << std::endl;
  }
  std::cerr << client->platform_name() << ": ready in " << ready - start << " s, " << options.steps
            << " steps in " << now() - ready << " s\n";
  if (options.save.empty()) return;
  const std::vector<SavedStep::Copied> state = step.state();
  std::map<std::string, Tensor> tensors;
  for (const SavedStep::Copied& part : state) tensors[part.name] = {part.type, part.bytes};
  write_tensors(options.save, tensors);
}

}  // namespace
}  // namespace runner

int main(int argc, char** argv) {
  const auto options = runner::parse(argc, argv);
  if (!options) {
    std::cerr << runner::kUsage;
    return 2;
  }
  try {
    runner::run(*options);
  } catch (const std::exception& e) {
    std::cerr << "step_runner: " << e.what() << "\n";
    return 1;
  }
  return 0;
}
