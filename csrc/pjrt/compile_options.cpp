#include "pjrt/compile_options.h"

#include <bit>
#include <cstdint>

#include "pjrt/device.h"

namespace torch_xla::pjrt {

namespace {

// The protocol buffer wire format, as far as CompileOptionsProto needs it: varints, doubles and
// nested fields.
class Message {
 public:
  void integer(int field, int64_t value) {
    key(field, 0);
    varint(static_cast<uint64_t>(value));
  }
  void real(int field, double value) {
    key(field, 1);
    auto bits = std::bit_cast<uint64_t>(value);
    for (int shift = 0; shift < 64; shift += 8) bytes_.push_back(static_cast<char>(bits >> shift));
  }
  void bytes(int field, std::string_view value) {
    key(field, 2);
    varint(value.size());
    bytes_ += value;
  }
  void message(int field, const Message& value) { bytes(field, value.bytes_); }
  // A repeated integer field in packed form is its varints in one length-delimited field.
  template <typename Range>
  void packed(int field, const Range& values) {
    Message content;
    for (auto value : values) content.varint(static_cast<uint64_t>(static_cast<int64_t>(value)));
    message(field, content);
  }
  std::string take() { return std::move(bytes_); }

 private:
  void key(int field, int wire_type) { varint(static_cast<uint64_t>(field) << 3 | wire_type); }
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>(value | 0x80));
    bytes_.push_back(static_cast<char>(value));
  }

  std::string bytes_;
};

Error invalid(const std::string& text) {
  return Error("CompileOptions", PJRT_Error_Code_INVALID_ARGUMENT, text);
}

Message device_assignment(const CompileOptions& options) {
  const size_t replicas = options.num_replicas, partitions = options.num_partitions;
  if (options.device_ids.size() != replicas * partitions) {
    throw invalid("device_ids: expected " + std::to_string(replicas) + " replicas x " +
                  std::to_string(partitions) +
                  " partitions = " + std::to_string(replicas * partitions) + " devices, got " +
                  std::to_string(options.device_ids.size()) + ". Pass one id for each.");
  }
  Message assignment;
  assignment.integer(1, replicas);    // replica_count
  assignment.integer(2, partitions);  // computation_count
  for (size_t partition = 0; partition < partitions; ++partition) {
    std::vector<int> ids;
    for (size_t replica = 0; replica < replicas; ++replica) {
      ids.push_back(options.device_ids[replica * partitions + partition]);
    }
    Message computation;
    computation.packed(1, ids);          // replica_device_ids
    assignment.message(3, computation);  // computation_devices
  }
  return assignment;
}

Message env_override(const std::string& name, const OptionValue& value) {
  Message field;
  if (auto* text = std::get_if<std::string>(&value)) {
    field.bytes(1, *text);
  } else if (auto* truth = std::get_if<bool>(&value)) {
    field.integer(2, *truth);
  } else if (auto* integer = std::get_if<int64_t>(&value)) {
    field.integer(3, *integer);
  } else if (auto* real = std::get_if<float>(&value)) {
    field.real(4, *real);
  } else {
    throw invalid("env_overrides: expected a string, a number or a bool for '" + name +
                  "', got a list. Pass it as one string, separated by commas.");
  }
  Message entry;
  entry.bytes(1, name);
  entry.message(2, field);
  return entry;
}

}  // namespace

void CompileOptions::set_devices(const Devices& devices, Over over) {
  device_ids.clear();
  for (const Device& device : devices.all) device_ids.push_back(device.id());
  const auto count = static_cast<int>(devices.all.size());
  num_partitions = over == Over::Partitions ? count : 1;
  num_replicas = over == Over::Replicas ? count : 1;
  use_spmd = num_partitions > 1;
}

// Field numbers are those of xla/pjrt/proto/compile_options.proto and xla/xla_data.proto.
std::string CompileOptions::serialize() const {
  if (num_replicas < 1 || num_partitions < 1) {
    throw invalid("expected at least one replica and one partition, got " +
                  std::to_string(num_replicas) + " and " + std::to_string(num_partitions) + ".");
  }
  Message build;
  build.integer(1, -1);  // device_ordinal: unset is -1, not the wire format's 0
  build.integer(4, num_replicas);
  build.integer(5, num_partitions);
  if (use_spmd) build.integer(6, true);
  if (!device_ids.empty()) build.message(9, device_assignment(*this));
  if (!allow_spmd_sharding_propagation_to_output.empty()) {
    build.packed(12, allow_spmd_sharding_propagation_to_output);
  }
  if (use_shardy) build.integer(19, true);

  Message options;
  options.message(3, build);
  if (portable) options.integer(4, true);
  for (const auto& [name, value] : env_overrides) options.message(7, env_override(name, value));
  return options.take();
}

}  // namespace torch_xla::pjrt
