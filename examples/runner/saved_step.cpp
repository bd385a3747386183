#include "saved_step.h"

#include <set>

#include <nlohmann/json.hpp>

namespace runner {
namespace {

using nlohmann::json;
using torch_xla::pjrt::Buffer;
using Slot = SavedStep::Slot;

Slot slot_of(const json& entry) {
  static const std::map<std::string, Slot::Kind> kinds = {{"argument", Slot::Kind::Argument},
                                                          {"state", Slot::Kind::State},
                                                          {"random", Slot::Kind::State},
                                                          {"result", Slot::Kind::Result}};
  Slot slot;
  slot.kind = kinds.at(entry.at("kind").get<std::string>());
  slot.name = entry.at("name").get<std::string>();
  slot.type.dtype = dtype_named(entry.at("dtype").get<std::string>());
  slot.type.shape = entry.at("shape").get<std::vector<int64_t>>();
  slot.type.bytes();  // throws
  return slot;
}

// A flag of a compiler.
torch_xla::pjrt::OptionValue option_of(const json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number()) return value.get<float>();
  return value.get<std::string>();
}

// All copies are in flight together.
std::vector<SavedStep::Copied> download(
    const std::vector<std::pair<const Slot*, const Buffer*>>& buffers) {
  std::vector<SavedStep::Copied> copies;
  copies.reserve(buffers.size());
  std::vector<torch_xla::pjrt::Event> events;
  for (const auto& [slot, buffer] : buffers) {
    if (buffer->dtype() != slot->type.dtype->pjrt || buffer->dims() != slot->type.shape) {
      fail("expected ", slot->name, " to be ", slot->type.str(),
           ", which the program did not give");
    }
    copies.push_back({slot->name, slot->type, std::vector<char>(buffer->host_size())});
    events.push_back(buffer->copy_to_host(copies.back().bytes.data(), copies.back().bytes.size()));
  }
  for (const auto& event : events) event.await();
  return copies;
}

}  // namespace

SavedStep::SavedStep(const std::filesystem::path& folder, const std::filesystem::path& state) {
  read_manifest(folder / "step.json");
  // The portable artifact, where there is one: StableHLO of other versions reads it.
  const bool is_artifact = std::filesystem::exists(folder / "step.bytecode");
  text_ = read_file(folder / (is_artifact ? "step.bytecode" : "step.mlir"));
  values_.emplace(state.empty() ? folder / "state.safetensors" : state);
  for (const Slot& slot : inputs_) {
    if (slot.kind == Slot::Kind::State) values_->check(slot.name, slot.type);
  }
}

void SavedStep::begin(std::shared_ptr<const torch_xla::pjrt::Client> client) {
  client_ = std::move(client);
  if (client_->addressable_devices().empty()) fail("expected a plugin with a device, found none");
  torch_xla::pjrt::CompileOptions options;
  options.env_overrides = options_[client_->platform_name()];
  program_ = torch_xla::pjrt::Executable::compile(*client_, {text_.data(), text_.size()}, options);
  if (program_->num_outputs() != outputs_.size()) {
    fail("expected a program of ", outputs_.size(), " results, got ", program_->num_outputs());
  }
  for (const Slot& slot : inputs_) {
    const bool is_state = slot.kind == Slot::Kind::State;
    held_.push_back(is_state ? upload(values_->at(slot.name)) : nullptr);
  }
  values_.reset();
}

void SavedStep::read_manifest(const std::filesystem::path& path) {
  const std::vector<char> text = read_file(path);
  try {
    const json manifest = json::parse(text.begin(), text.end());
    if (manifest.at("format") != "torch_xla.saved_step") fail("it is no saved step");
    if (manifest.at("version") != 1) {
      fail("it has version ", manifest.at("version").dump(), "; this program reads 1");
    }
    for (const auto& [platform, options] : manifest.at("compile_options").items()) {
      for (const auto& [name, value] : options.items()) options_[platform][name] = option_of(value);
    }
    for (const json& entry : manifest.at("inputs")) {
      inputs_.push_back(slot_of(entry));
      if (inputs_.back().kind == Slot::Kind::Result) fail("a result is among the inputs");
    }
    std::set<size_t> replaced;
    for (const json& entry : manifest.at("outputs")) {
      Slot slot = slot_of(entry);
      if (slot.kind == Slot::Kind::Argument) fail("an argument is among the outputs");
      if (slot.kind == Slot::Kind::State) {
        slot.replaces = entry.at("replaces").get<size_t>();
        if (slot.replaces >= inputs_.size() || !replaced.insert(slot.replaces).second ||
            inputs_[slot.replaces].kind != Slot::Kind::State ||
            inputs_[slot.replaces].type != slot.type) {
          fail("the output ", slot.name, " replaces no state of its type");
        }
      }
      outputs_.push_back(std::move(slot));
    }
  } catch (const std::exception& e) {
    fail(path.string(), ": expected the description of a step, got: ", e.what());
  }
}

std::shared_ptr<Buffer> SavedStep::upload(const Tensor& tensor) const {
  return Buffer::from_host(*client_, tensor.bytes.data(), tensor.type.dtype->pjrt,
                           tensor.type.shape, std::nullopt,
                           torch_xla::pjrt::HostSemantics::ImmutableOnlyDuringCall,
                           client_->addressable_devices().front());
}

std::vector<SavedStep::Copied> SavedStep::run(const std::vector<Tensor>& arguments) {
  std::vector<PJRT_Buffer*> handles;
  auto next = arguments.begin();
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i].kind == Slot::Kind::Argument) held_[i] = upload(*next++);
    handles.push_back(held_[i]->handle());
  }
  const auto result = program_->execute(handles);
  std::vector<std::pair<const Slot*, const Buffer*>> results;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (outputs_[i].kind == Slot::Kind::State) {
      held_[outputs_[i].replaces] = result.outputs[i];
    } else {
      results.emplace_back(&outputs_[i], result.outputs[i].get());
    }
  }
  result.done.await();
  return download(results);
}

std::vector<SavedStep::Copied> SavedStep::state() const {
  std::vector<std::pair<const Slot*, const Buffer*>> parts;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i].kind == Slot::Kind::State) parts.emplace_back(&inputs_[i], held_[i].get());
  }
  return download(parts);
}

}  // namespace runner
