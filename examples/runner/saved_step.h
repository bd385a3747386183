// A training step that torch_xla.saved_step has written, on one device of a PJRT plugin.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pjrt/client.h"
#include "pjrt/executable.h"
#include "tensors.h"

namespace runner {

class SavedStep {
 public:
  // Reads the folder, and the state from another file if one is named. Throws where a file is not
  // what it should be.
  SavedStep(const std::filesystem::path& folder, const std::filesystem::path& state);
  // Compiles the program for the client's first device and brings the state there.
  void begin(std::shared_ptr<const torch_xla::pjrt::Client> client);

  // An argument, a part of the state, or a result.
  struct Slot {
    enum class Kind { Argument, State, Result } kind;
    std::string name;
    Type type;
    size_t replaces = 0;  // of an output that is state: the input that it is the new value of
  };
  const std::vector<Slot>& inputs() const { return inputs_; }

  // The bytes of results or state, in host memory.
  struct Copied {
    std::string name;
    Type type;
    std::vector<char> bytes;
  };
  // Runs one step, of arguments of the types and in the order of inputs(), and returns its results.
  // The state stays on the device, each part in the memory of the one that it replaces.
  std::vector<Copied> run(const std::vector<Tensor>& arguments);
  std::vector<Copied> state() const;

 private:
  using Buffer = torch_xla::pjrt::Buffer;

  void read_manifest(const std::filesystem::path& path);
  std::shared_ptr<Buffer> upload(const Tensor& tensor) const;

  std::map<std::string, torch_xla::pjrt::Options> options_;  // the compiler's, of platforms
  std::vector<char> text_;                                   // the program
  std::optional<TensorFile> values_;                         // of the state, before it is brought
  std::shared_ptr<const torch_xla::pjrt::Client> client_;
  std::unique_ptr<torch_xla::pjrt::Executable> program_;
  std::vector<Slot> inputs_, outputs_;
  std::vector<std::shared_ptr<Buffer>> held_;  // of each input
};

}  // namespace runner
