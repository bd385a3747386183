// Modules are protocol buffers: the fields of a message, each a key, which is the field's number
// and its kind, and a value.
#include "spmd/compiled_module.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "util/error.h"

namespace torch_xla::spmd {
namespace {

// Field numbers of xla/service/hlo.proto and xla/xla_data.proto.
constexpr uint64_t kModuleOfConfigured = 1;
enum Module : uint64_t {
  Computations = 3,
  ProgramShape = 4,
  OutputSharding = 12,
  StackFrames = 17
};
enum ProgramShapeField : uint64_t { Parameters = 1 };
enum Computation : uint64_t { Instructions = 2, ComputationId = 5 };
enum Instruction : uint64_t {
  Name = 1,
  Opcode = 2,
  Shape = 3,
  Metadata = 7,
  Literal = 8,
  Called = 38,
  BackendConfig = 43,
  ReplicaGroups = 49,
  SourceTargets = 52,
  DeviceList = 87,
  MeshGroups = 93,
};
// The integers of literals: s32, s64, u32 and u64.
enum LiteralField : uint64_t { FirstIntegers = 4, LastIntegers = 7 };
enum SourceTargetField : uint64_t { Source = 1, Target = 2 };
enum MetadataField : uint64_t { OperationName = 2, SourceFile = 3, SourceLine = 4, FrameId = 15 };
enum StackFramesField : uint64_t { FileNames = 1, Locations = 3, Frames = 4 };
enum LocationField : uint64_t { FileId = 1, Line = 3 };
enum FrameField : uint64_t { LocationId = 1 };
enum DeviceListField : uint64_t { ListedGroups = 1, IotaGroups = 2 };
enum MeshGroupsField : uint64_t { MeshOfGroups = 1, AxesOfGroups = 2 };
enum MeshField : uint64_t { MeshAxes = 1, MeshDevices = 2 };
enum MeshAxisField : uint64_t { AxisSize = 2 };
enum AxisRefField : uint64_t { AxisIndex = 1, PartOfAxis = 2 };
enum PartOfAxisField : uint64_t { PartBefore = 1, PartSize = 2 };
enum IotaField : uint64_t { NumGroups = 1, GroupSize = 2, Reshape = 3, Order = 4 };
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

// The bytes of an element, by xla.PrimitiveType; 0 for types that have none.
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

std::vector<std::string> read_argument_types(std::string_view module, bool with_config) {
  // By xla.PrimitiveType.
  static constexpr std::string_view kNames[] = {
      "",    "i1",  "i8",  "i16", "i32", "i64",          "ui8",  "ui16", "ui32",        "ui64",
      "f16", "f32", "f64", "",    "",    "complex<f32>", "bf16", "",     "complex<f64>"};
  std::vector<std::string> types;
  for (Fields fields(without_config(module, with_config)); fields.next();) {
    if (fields.number() != ProgramShape) continue;
    for (Fields program(fields.bytes()); program.next();) {
      if (program.number() != Parameters) continue;
      std::vector<int64_t> sizes;
      uint64_t type = 0;
      for (Fields shape(program.bytes()); shape.next();) {
        if (shape.number() == ElementType) type = shape.value();
        if (shape.number() == Dimensions) shape.add_to(sizes);
      }
      if (type >= std::size(kNames) || kNames[type].empty()) return {};
      std::string& text = types.emplace_back("tensor<");
      for (const int64_t size : sizes) text += std::to_string(size) + "x";
      text += std::string(kNames[type]) + ">";
    }
  }
  return types;
}

std::vector<const Sharding*> read_output_shardings(std::string_view module, bool with_config,
                                                   const Mesh* mesh) {
  for (Fields fields(without_config(module, with_config)); fields.next();) {
    if (fields.number() == OutputSharding) return read_sharding(fields.bytes(), mesh);
  }
  return {};
}

namespace {

// The integers of a message whose fields all are such: a replica group.
std::vector<int64_t> integers(std::string_view message) {
  std::vector<int64_t> all;
  for (Fields fields(message); fields.next();) fields.add_to(all);
  return all;
}

// The integer in a field; 0, which is left out, where there is none.
uint64_t integer(std::string_view message, uint64_t number) {
  for (Fields fields(message); fields.next();) {
    if (fields.number() == number) return fields.value();
  }
  return 0;
}

void read_iota_groups(std::string_view message, std::vector<std::vector<int64_t>>& groups) {
  std::vector<int64_t> sizes, order;
  const size_t count = integer(message, NumGroups), size = integer(message, GroupSize);
  for (Fields fields(message); fields.next();) {
    if (fields.number() == Reshape) fields.add_to(sizes);
    if (fields.number() == Order) fields.add_to(order);
  }
  const std::vector<int64_t> devices = transposed_iota(sizes, order);
  if (devices.size() != count * size) return;
  for (size_t g = 0; g < count; ++g) {
    groups.emplace_back(devices.begin() + g * size, devices.begin() + (g + 1) * size);
  }
}

// Groups of the devices that differ along some axes of a mesh, or parts of its axes.
void read_mesh_groups(std::string_view message, std::vector<std::vector<int64_t>>& groups) {
  std::vector<int64_t> sizes, devices;
  std::vector<Axis> axes;
  for (Fields fields(message); fields.next();) {
    if (fields.number() == MeshOfGroups) {
      for (Fields mesh(fields.bytes()); mesh.next();) {
        if (mesh.number() == MeshDevices) mesh.add_to(devices);
        if (mesh.number() != MeshAxes) continue;
        sizes.push_back(static_cast<int64_t>(integer(mesh.bytes(), AxisSize)));
      }
    }
    if (fields.number() == AxesOfGroups) {
      Axis& axis = axes.emplace_back(Axis{integer(fields.bytes(), AxisIndex), 1, 0});
      for (Fields ref(fields.bytes()); ref.next();) {
        if (ref.number() != PartOfAxis) continue;
        axis.before = static_cast<int64_t>(integer(ref.bytes(), PartBefore));
        axis.size = static_cast<int64_t>(integer(ref.bytes(), PartSize));
      }
    }
  }
  int64_t count = 1;
  std::vector<int64_t> strides(sizes.size());
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = count;
    count *= sizes[i];
  }
  // Devices are in one group if their places are equal once they are moved to the first along the
  // axes.
  std::map<int64_t, std::vector<int64_t>> group_of;
  for (int64_t place = 0; place < count; ++place) {
    int64_t first = place;
    for (const Axis& axis : axes) {
      if (axis.index >= sizes.size()) return;
      const int64_t part = axis.size != 0 ? axis.size : sizes[axis.index];
      const int64_t inner = sizes[axis.index] / (axis.before * part) * strides[axis.index];
      first -= place / inner % part * inner;
    }
    group_of[first].push_back(devices.empty() ? place : devices.at(place));
  }
  for (auto& [first, group] : group_of) groups.push_back(std::move(group));
}

std::string file_line(std::string_view file, uint64_t line) {
  return file.empty() ? "" : std::string(file) + ":" + std::to_string(line);
}

// The lines of a module's stack frames, by the frames' ids, of which 0 is none.
std::vector<std::string> read_frame_lines(std::string_view module) {
  std::vector<std::string_view> files = {""}, locations = {""}, frames = {""};
  for (Fields m(module); m.next();) {
    if (m.number() != StackFrames) continue;
    for (Fields fields(m.bytes()); fields.next();) {
      if (fields.number() == FileNames) files.push_back(fields.bytes());
      if (fields.number() == Locations) locations.push_back(fields.bytes());
      if (fields.number() == Frames) frames.push_back(fields.bytes());
    }
  }
  std::vector<std::string> lines;
  for (const std::string_view frame : frames) {
    const std::string_view location = locations.at(integer(frame, LocationId));
    lines.push_back(file_line(files.at(integer(location, FileId)), integer(location, Line)));
  }
  return lines;
}

Origin read_metadata(std::string_view metadata, const std::vector<std::string>& frame_lines) {
  Origin origin;
  std::string_view file;
  uint64_t line = 0, frame = 0;
  for (Fields fields(metadata); fields.next();) {
    if (fields.number() == OperationName) origin.operation = fields.bytes();
    if (fields.number() == SourceFile) file = fields.bytes();
    if (fields.number() == SourceLine) line = fields.value();
    if (fields.number() == FrameId) frame = fields.value();
  }
  origin.line = file_line(file, line);
  if (origin.line.empty() && frame < frame_lines.size()) origin.line = frame_lines[frame];
  return origin;
}

Collective read_instruction(std::string_view instruction,
                            const std::vector<std::string>& frame_lines) {
  Collective c;
  for (Fields fields(instruction); fields.next();) {
    switch (fields.number()) {
      case Opcode:
        c.kind = fields.bytes();
        break;
      case Shape:
        c.bytes = bytes_of_shape(fields.bytes());
        break;
      case ReplicaGroups:
        c.groups.push_back(integers(fields.bytes()));
        break;
      case SourceTargets:  // a zero is left out
        c.groups.push_back({static_cast<int64_t>(integer(fields.bytes(), Source)),
                            static_cast<int64_t>(integer(fields.bytes(), Target))});
        break;
      case DeviceList:
        for (Fields list(fields.bytes()); list.next();) {
          if (list.number() == ListedGroups) c.groups.push_back(integers(list.bytes()));
          if (list.number() == IotaGroups) read_iota_groups(list.bytes(), c.groups);
        }
        break;
      case MeshGroups:
        read_mesh_groups(fields.bytes(), c.groups);
        break;
      case Metadata:
        c.origin = read_metadata(fields.bytes(), frame_lines);
        break;
      default:
        break;
    }
  }
  return c;
}

// Counts how often a run goes through each computation of a module, by their ids.
class Repeats {
 public:
  explicit Repeats(std::string_view module) {
    for (Fields m(module); m.next();) {
      if (m.number() == Computations) add_computation(m.bytes());
    }
    // A computation stands before those that call it.
    for (size_t i = computations_.size(); i-- > 0;) pass_on(computations_[i]);
  }

  int64_t of(std::string_view computation) const {
    return times_.at(static_cast<int64_t>(integer(computation, ComputationId)));
  }

 private:
  struct Callee {
    bool is_loop;
    std::vector<int64_t> called;  // of a loop its body and its condition
  };
  struct Calls {
    int64_t id = 0;
    std::vector<Callee> calls = {};
  };

  void add_computation(std::string_view computation) {
    Calls made{.id = static_cast<int64_t>(integer(computation, ComputationId))};
    int64_t largest = 1;
    for (Fields c(computation); c.next();) {
      if (c.number() != Instructions) continue;
      Callee call{};
      for (Fields fields(c.bytes()); fields.next();) {
        if (fields.number() == Opcode) call.is_loop = fields.bytes() == "while";
        if (fields.number() == Called) fields.add_to(call.called);
        if (fields.number() == Literal) largest = std::max(largest, largest_of(fields.bytes()));
      }
      if (!call.called.empty()) made.calls.push_back(std::move(call));
    }
    largest_[made.id] = largest;
    computations_.push_back(std::move(made));
  }

  void pass_on(const Calls& from) {
    const int64_t times = times_.try_emplace(from.id, 1).first->second;  // 1: it is the entry
    for (const Callee& call : from.calls) {
      // A loop counts up to its number of times, which stands in its condition; one that may end
      // sooner counts as one that does not.
      const int64_t each = call.is_loop ? times * largest_[call.called.back()] : times;
      for (const int64_t called : call.called) times_[called] += each;
    }
  }

  // The largest of its integers, but for one that is no count: a bound that is never met.
  static int64_t largest_of(std::string_view literal) {
    constexpr int64_t kMostTimes = 1 << 20;
    std::vector<int64_t> found = {1};
    for (Fields fields(literal); fields.next();) {
      if (fields.number() >= FirstIntegers && fields.number() <= LastIntegers) fields.add_to(found);
    }
    const int64_t largest = *std::max_element(found.begin(), found.end());
    return largest <= kMostTimes ? largest : 1;
  }

  std::vector<Calls> computations_;
  std::map<int64_t, int64_t> times_, largest_;
};

// Calls `visit` with each instruction of a module and how often a run does it.
template <class Visit>
void for_instructions(std::string_view module, Visit visit) {
  const Repeats repeats(module);
  for (Fields m(module); m.next();) {
    if (m.number() != Computations) continue;
    const int64_t times = repeats.of(m.bytes());
    for (Fields c(m.bytes()); c.next();) {
      if (c.number() == Instructions) visit(c.bytes(), times);
    }
  }
}

}  // namespace

std::map<std::string, Origin> read_origins(std::string_view module, bool with_config) {
  module = without_config(module, with_config);
  const std::vector<std::string> frame_lines = read_frame_lines(module);
  std::map<std::string, Origin> found;
  for_instructions(module, [&](std::string_view instruction, int64_t) {
    std::string_view name, metadata;
    for (Fields fields(instruction); fields.next();) {
      if (fields.number() == Name) name = fields.bytes();
      if (fields.number() == Metadata) metadata = fields.bytes();
    }
    Origin origin = read_metadata(metadata, frame_lines);
    if (origin.operation.empty() && origin.line.empty()) return;
    found.try_emplace(std::string(name), std::move(origin));
  });
  return found;
}

std::vector<Collective> read_collectives(std::string_view module, bool with_config) {
  module = without_config(module, with_config);
  const std::vector<std::string> frame_lines = read_frame_lines(module);
  std::vector<Collective> found;
  for_instructions(module, [&](std::string_view instruction, int64_t times) {
    Collective collective = read_instruction(instruction, frame_lines);
    for (const char* kind : {"all-gather", "all-reduce", "all-to-all", "collective-permute",
                             "reduce-scatter", "collective-broadcast", "ragged-all-to-all"}) {
      // Plugins may start them and wait for their end in two operations.
      if (collective.kind != kind && collective.kind != std::string(kind) + "-start") continue;
      collective.kind = kind;
      collective.times = times;
      found.push_back(std::move(collective));
      break;
    }
  });
  return found;
}

double read_cycles(std::string_view module, bool with_config) {
  static constexpr std::string_view kKey = "\"estimated_cycles\":\"";
  double cycles = 0;
  for_instructions(without_config(module, with_config),
                   [&](std::string_view instruction, int64_t times) {
                     std::string_view config;
                     for (Fields fields(instruction); fields.next();) {
                       if (fields.number() == BackendConfig) config = fields.bytes();
                     }
                     const size_t place = config.find(kKey);
                     if (place == std::string_view::npos) return;
                     int64_t number = 0;
                     const char* text = config.data() + place + kKey.size();
                     std::from_chars(text, config.data() + config.size(), number);
                     if (number == std::numeric_limits<int64_t>::max()) return;  // not estimated
                     cycles += static_cast<double>(number) * static_cast<double>(times);
                   });
  return cycles;
}

}  // namespace torch_xla::spmd
