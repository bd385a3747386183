// Modules are protocol buffers: the fields of a message, each a key, which is the field's number
// and its kind, and a value.
#include "spmd/compiled_module.h"

#include <utility>

#include "util/error.h"

namespace torch_xla::spmd {
namespace {

// Field numbers of xla/service/hlo.proto and xla/xla_data.proto.
constexpr uint64_t kModuleOfConfigured = 1;
enum Module : uint64_t { Computations = 3, OutputSharding = 12 };
enum Computation : uint64_t { Instructions = 2 };
enum Instruction : uint64_t { Opcode = 2, Shape = 3 };
enum ShapeField : uint64_t { ElementType = 2, Dimensions = 3, TupleShapes = 4 };
enum OpSharding : uint64_t {
  Type = 1,
  Parts = 3,
  Devices = 4,
  Elements = 5,
  ReplicatesLast = 6,
  Subgroups = 8,
  IotaSizes = 9,
  IotaOrder = 10,
};
enum class Kind : uint64_t { Replicated, Maximal, Tuple, Tiled };

// Takes the fields of a message one by one.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : rest_(bytes) {}

  bool next() {
    if (rest_.empty()) return false;
    const uint64_t key = varint();
    number_ = key >> 3;
    bytes_ = {};
    value_ = 0;
    switch (key & 7) {
      case 0:
        value_ = varint();
        break;
      case 1:
        bytes_ = take(8);
        break;
      case 2:
        bytes_ = take(varint());
        break;
      case 5:
        bytes_ = take(4);
        break;
      default:
        malformed();
    }
    return true;
  }

  uint64_t number() const { return number_; }
  uint64_t value() const { return value_; }
  std::string_view bytes() const { return bytes_; }
  // Adds the integers of a repeated field, which come packed or one by one.
  void add_to(std::vector<int64_t>& list) const {
    if (bytes_.empty()) {
      list.push_back(static_cast<int64_t>(value_));
      return;
    }
    Fields packed(bytes_);
    while (!packed.rest_.empty()) list.push_back(static_cast<int64_t>(packed.varint()));
  }

 private:
  [[noreturn]] static void malformed() {
    util::fail(util::ErrorKind::Runtime,
               "sharding: expected a compiled module as a protocol "
               "buffer, got bytes that are none. Please report this.");
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    malformed();
  }
  std::string_view take(size_t n) {
    if (n > rest_.size()) malformed();
    const std::string_view taken = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return taken;
  }

  std::string_view rest_, bytes_;
  uint64_t number_ = 0, value_ = 0;
};

// 0, 1, 2, ... in rows of these sizes, transposed.
std::vector<int64_t> transposed_iota(const std::vector<int64_t>& sizes,
                                     const std::vector<int64_t>& order) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * sizes[i];
  const int64_t count = sizes.empty() ? 1 : strides[0] * sizes[0];
  std::vector<int64_t> devices;
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i, device = 0;
    for (size_t j = order.size(); j-- > 0;) {
      device += rest % sizes[order[j]] * strides[order[j]];
      rest /= sizes[order[j]];
    }
    devices.push_back(device);
  }
  return devices;
}

// A sharding, or those of a tuple's elements.
std::vector<const Sharding*> read_sharding(std::string_view message, const Mesh* mesh) {
  Kind kind = Kind::Replicated;
  TileAssignment tiles;
  std::vector<int64_t> iota_sizes, iota_order, subgroups;
  std::vector<const Sharding*> elements;
  for (Fields fields(message); fields.next();) {
    switch (fields.number()) {
      case Type:
        kind = static_cast<Kind>(fields.value());
        break;
      case Parts:
        fields.add_to(tiles.parts);
        break;
      case Devices:
        fields.add_to(tiles.devices);
        break;
      case Elements:
        elements.push_back(read_sharding(fields.bytes(), mesh).at(0));
        break;
      case ReplicatesLast:
        tiles.replicates = fields.value() != 0;
        break;
      case Subgroups:
        fields.add_to(subgroups);
        break;
      case IotaSizes:
        fields.add_to(iota_sizes);
        break;
      case IotaOrder:
        fields.add_to(iota_order);
        break;
      default:
        break;
    }
  }
  if (kind == Kind::Tuple) return elements;
  if (kind == Kind::Replicated) return {nullptr};
  TXLA_CHECK(kind == Kind::Tiled && subgroups.empty(),
             "sharding: expected results that are split in tiles, got a sharding of kind ",
             static_cast<int>(kind), ". Please report this.");
  if (tiles.devices.empty()) tiles.devices = transposed_iota(iota_sizes, iota_order);
  const Sharding* sharding = tiles.sharding(mesh);
  return {sharding->is_replicated() ? nullptr : sharding};
}

}  // namespace

namespace {

std::string_view without_config(std::string_view module, bool with_config) {
  if (!with_config) return module;
  for (Fields fields(module); fields.next();) {
    if (fields.number() == kModuleOfConfigured) return fields.bytes();
  }
  return {};
}

// Of an element, by xla.PrimitiveType; 0 for types that have none.
int64_t bytes_of_type(uint64_t type) {
  static constexpr int64_t kBytes[] = {0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 0, 0, 8, 2, 0, 16};
  if (type < std::size(kBytes)) return kBytes[type];
  return 1;  // floats of 8 bits, and integers of fewer
}

int64_t bytes_of_shape(std::string_view shape) {
  int64_t bytes = 0, elements = 1;
  for (Fields fields(shape); fields.next();) {
    if (fields.number() == ElementType) bytes = bytes_of_type(fields.value());
    if (fields.number() == TupleShapes) bytes += bytes_of_shape(fields.bytes());
    if (fields.number() != Dimensions) continue;
    std::vector<int64_t> sizes;
    fields.add_to(sizes);
    for (const int64_t size : sizes) elements *= size;
  }
  return bytes * elements;
}

}  // namespace

std::vector<const Sharding*> read_output_shardings(std::string_view module, bool with_config,
                                                   const Mesh* mesh) {
  for (Fields fields(without_config(module, with_config)); fields.next();) {
    if (fields.number() == OutputSharding) return read_sharding(fields.bytes(), mesh);
  }
  return {};
}

std::vector<Collective> read_collectives(std::string_view module, bool with_config) {
  std::vector<Collective> found;
  for (Fields m(without_config(module, with_config)); m.next();) {
    if (m.number() != Computations) continue;
    for (Fields c(m.bytes()); c.next();) {
      if (c.number() != Instructions) continue;
      Collective collective;
      for (Fields i(c.bytes()); i.next();) {
        if (i.number() == Opcode) collective.kind = i.bytes();
        if (i.number() == Shape) collective.bytes = bytes_of_shape(i.bytes());
      }
      for (const char* kind : {"all-gather", "all-reduce", "all-to-all", "collective-permute",
                               "reduce-scatter", "collective-broadcast", "ragged-all-to-all"}) {
        // Plugins may start them and wait for their end in two operations.
        if (collective.kind == kind || collective.kind == std::string(kind) + "-start") {
          found.push_back({kind, collective.bytes});
        }
      }
    }
  }
  return found;
}

}  // namespace torch_xla::spmd
