// The shardings of tensors among devices.
#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <c10/core/AutogradState.h>
#include <c10/core/GradMode.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "debug/metrics.h"
#include "dispatch/sharding/mark_sharding.h"
#include "dispatch/sharding/operators.h"
#include "executor/compile/auto_sharding.h"
#include "executor/compile/compile.h"
#include "executor/run/runtime.h"
#include "executor/run/transfer.h"
#include "executor/step/read.h"
#include "executor/step/sync.h"
#include "lazy/tensor.h"
#include "python/init.h"
#include "python/program_data.h"
#include "python/values.h"
#include "spmd/compiled_module.h"
#include "spmd/place.h"
#include "spmd/sharding.h"
#include "util/error.h"

namespace py = pybind11;

namespace torch_xla::python {
namespace {

using Dims = std::vector<int64_t>;

// The numbers of torch_xla.distributed.spmd.ShardingType.
enum class Type : int {
  Replicated = 0,
  Maximal = 1,
  Tuple = 2,
  Tiled = 3,
  Manual = 4,
  Partial = 5
};

// An OpSharding, as torch_xla calls it: a sharding, or that every device has the whole of a tensor
// of any rank, or its own.
struct OpSharding {
  const spmd::Sharding* sharding = nullptr;
  bool is_manual = false;

  const spmd::Sharding* of_rank(int64_t rank) const {
    if (sharding != nullptr) return sharding;
    const size_t n = executor::Runtime::get().devices(0).all.size();
    if (is_manual) {
      std::vector<int64_t> devices(n);
      std::iota(devices.begin(), devices.end(), int64_t{0});
      const auto count = static_cast<int64_t>(n);
      return spmd::Sharding::manual(spmd::Mesh::of({"device"}, {count}, std::move(devices)),
                                    static_cast<size_t>(rank));
    }
    spmd::TileAssignment one;
    one.parts.assign(static_cast<size_t>(rank), 1);
    one.parts.push_back(static_cast<int64_t>(n));
    one.replicates = true;
    for (size_t i = 0; i < n; ++i) one.devices.push_back(static_cast<int64_t>(i));
    return one.sharding();
  }
  std::string text() const {
    if (is_manual) return "{manual}";
    return sharding == nullptr ? "{replicated}" : sharding->gspmd();
  }
};

Type type_of(const spmd::Sharding& s) {
  if (s.is_manual) return Type::Manual;
  if (s.is_replicated()) return Type::Replicated;
  return s.num_parts() == s.num_devices() ? Type::Tiled : Type::Partial;
}

// Appends the numbers of nested lists, and their lengths.
void flatten(const py::handle& nested, size_t depth, std::vector<int64_t>& sizes,
             std::vector<int64_t>& numbers) {
  if (!py::isinstance<py::sequence>(nested)) {
    numbers.push_back(nested.cast<int64_t>());
    return;
  }
  const auto list = py::reinterpret_borrow<py::sequence>(nested);
  if (sizes.size() == depth) sizes.push_back(static_cast<int64_t>(list.size()));
  TXLA_CHECK_KIND(util::ErrorKind::Value, sizes[depth] == static_cast<int64_t>(list.size()),
                  "OpSharding: expected rows of equal lengths, got ", sizes[depth], " and ",
                  list.size(), ".");
  for (const py::handle element : list) flatten(element, depth + 1, sizes, numbers);
}

// torch_xla's arguments. The group assignment follows from the tile assignment; in that of a partly
// replicated sharding, `replication_groups` lists the devices that hold each part.
const debug::Counter& made_op_shardings() {
  static const debug::Counter made("CreateOpSharding");
  return made;
}

OpSharding make_op_sharding(const py::object& tile_assignment, const py::object& /*groups*/,
                            const py::object& replication_groups, int sharding_type) {
  made_op_shardings().add();
  const auto type = static_cast<Type>(sharding_type);
  if (type == Type::Replicated) return {};
  if (type == Type::Manual) return {.is_manual = true};
  TXLA_CHECK_KIND(util::ErrorKind::NotImplemented, type == Type::Tiled || type == Type::Partial,
                  "OpSharding: expected the type REPLICATED, TILED, PARTIAL or MANUAL, got ",
                  sharding_type, ".");
  spmd::TileAssignment tiles;
  flatten(tile_assignment, 0, tiles.parts, tiles.devices);
  if (type == Type::Partial) {
    std::vector<int64_t> sizes;
    tiles.devices.clear();
    flatten(replication_groups, 0, sizes, tiles.devices);
    int64_t parts = 1;
    for (const int64_t n : tiles.parts) parts *= n;
    const auto devices = static_cast<int64_t>(tiles.devices.size());
    // Some callers give the number of replicas as the last size, beyond the tensor's dimensions.
    if (parts != devices) tiles.parts.push_back(devices / parts);
    tiles.replicates = true;
  }
  return {tiles.sharding()};
}

OpSharding along_mesh(const std::vector<std::string>& names, const std::vector<int64_t>& sizes,
                      const std::vector<int64_t>& devices,
                      const std::vector<std::vector<int64_t>>& spec) {
  made_op_shardings().add();
  const spmd::Mesh* mesh = spmd::Mesh::of(names, sizes, devices);
  std::vector<std::vector<spmd::Axis>> dims;
  for (const std::vector<int64_t>& axes : spec) {
    std::vector<spmd::Axis>& dim = dims.emplace_back();
    for (const int64_t axis : axes) {
      TXLA_CHECK_KIND(
          util::ErrorKind::Value, axis >= 0 && axis < static_cast<int64_t>(sizes.size()),
          "partition spec: expected an axis from 0 to ", sizes.size() - 1, ", got ", axis, ".");
      if (sizes[axis] != 1) dim.push_back({static_cast<size_t>(axis), 1, sizes[axis]});
    }
  }
  return {spmd::Sharding::of(mesh, std::move(dims))};
}

std::string spec_of(const at::Tensor& tensor) {
  const spmd::Sharding* s = dispatch::sharding_of(tensor);
  if (s != nullptr) return s->gspmd();
  return dispatch::is_on_all_devices(tensor) ? "{replicated}" : "";
}

py::object slices(const spmd::Sharding* s, const at::Tensor& tensor, int64_t device) {
  if (s == nullptr || s->is_manual || s->is_replicated()) return py::ellipsis();
  py::list list;
  for (const auto [start, end] : spmd::place_of(*s, device, tensor.sizes())) {
    list.append(py::slice(py::int_(start), py::int_(end), py::int_(1)));
  }
  return list;
}

// The sharding of the tensor's value, which is computed where it waits.
const spmd::Sharding* held_sharding(const at::Tensor& tensor, const char* who) {
  int device = 0;
  std::vector<lazy::Value> values = present_values({tensor}, who, &device);
  executor::materialize(values, device);
  return executor::sharding_of(values[0]);
}

std::vector<std::vector<std::pair<at::Tensor, std::string>>> shards_of_devices(
    const std::vector<at::Tensor>& tensors) {
  std::vector<std::vector<std::pair<at::Tensor, std::string>>> all;
  for (const at::Tensor& t : tensors) {
    int device = 0;
    std::vector<lazy::Value> values = present_values({t}, "_get_local_shards", &device);
    auto& shards = all.emplace_back();
    for (auto& [real, data] : executor::download_shards(std::move(values[0]), device)) {
      shards.emplace_back(std::move(data), real_device_name(real));
    }
  }
  return all;
}

std::vector<std::vector<std::pair<int64_t, py::object>>> replicas_and_indices(
    const std::vector<at::Tensor>& tensors) {
  std::vector<std::vector<std::pair<int64_t, py::object>>> all;
  for (const at::Tensor& t : tensors) {
    const spmd::Sharding* s = held_sharding(t, "_get_local_shard_replica_and_indices");
    auto& shards = all.emplace_back();
    for (const int64_t device : executor::Runtime::get().devices(0).positions) {
      const int64_t replica = s == nullptr ? device : s->is_manual ? 0 : s->replica_of(device);
      shards.emplace_back(replica, slices(s, t, device));
    }
  }
  return all;
}

// The value whose parts on the devices of this process these are, in the devices' order.
at::Tensor tensor_of(const std::vector<at::Tensor>& shards, const spmd::Sharding& s,
                     at::IntArrayRef sizes, const char* who) {
  const size_t n = executor::Runtime::get().devices(0).mine.size();
  TXLA_CHECK(shards.size() == n, who, ": expected a shard for each of ", n, " devices, got ",
             shards.size(), ".");
  TXLA_CHECK(sizes.size() == s.dims.size(), who, ": expected the sizes of the whole, of ",
             s.dims.size(), " dimensions as the shards, got ", sizes, ".");
  const std::vector<int64_t> part = s.part_sizes(sizes);
  for (const at::Tensor& shard : shards) {
    TXLA_CHECK(shard.is_cpu() && shard.sizes() == part, who, ": expected CPU shards of the sizes ",
               at::IntArrayRef(part), ", padding included, got ", shard.sizes(), " on ",
               shard.device().str(), ".");
  }
  lazy::Value value = executor::upload_parts(shards, sizes, 0, &s);
  const lazy::Geometry* geometry = &value.geometry();
  return lazy::make_tensor(std::move(value), geometry, 0);
}

// torch_xla's functions at the boundaries of manual code.
at::Tensor full_to_shard_shape(const at::Tensor& tensor) {
  const spmd::Sharding* s = dispatch::sharding_of(tensor);
  TXLA_CHECK(s != nullptr && !s->is_manual,
             "_spmd_full_to_shard_shape: expected a tensor that mark_sharding has split, got ",
             s == nullptr ? "another" : s->gspmd(), ".");
  return dispatch::full_to_shard(tensor, *s);
}

at::Tensor shard_to_full_shape(const at::Tensor& tensor, const OpSharding& op_sharding,
                               const std::vector<int64_t>& sizes, at::ScalarType dtype) {
  constexpr const char* kWho = "_spmd_shard_to_full_shape";
  TXLA_CHECK_KIND(util::ErrorKind::Value, !op_sharding.is_manual, kWho,
                  ": expected an OpSharding that splits a value, got {manual}.");
  const spmd::Sharding* present = dispatch::sharding_of(tensor);
  TXLA_CHECK(present != nullptr && present->is_manual, kWho,
             ": expected a manual tensor, of which each device has its own, got ",
             present == nullptr ? "another" : present->gspmd(), ".");
  const spmd::Sharding* s = op_sharding.of_rank(tensor.dim());
  const at::Tensor converted = tensor.to(dtype);
  at::Tensor whole = dispatch::shard_to_full(converted, *s);
  TXLA_CHECK_KIND(util::ErrorKind::Value, whole.sizes() == sizes, kWho, ": expected the sizes ",
                  whole.sizes(), " of ", op_sharding.text(), " parts of ", tensor.sizes(), ", got ",
                  at::IntArrayRef(sizes), ".");
  return whole;
}

void load_local_shards(const at::Tensor& tensor, const std::vector<at::Tensor>& shards,
                       const std::vector<std::string>& devices) {
  constexpr const char* kWho = "_load_local_shards";
  TXLA_CHECK(shards.size() == devices.size(), kWho, ": expected a device for each of ",
             shards.size(), " shards, got ", devices.size(), ".");
  std::vector<at::Tensor> by_device;
  for (const pjrt::Device& real : executor::Runtime::get().devices(0).mine) {
    const auto it = std::ranges::find(devices, real_device_name(real));
    TXLA_CHECK(std::ranges::count(devices, real_device_name(real)) == 1, kWho,
               ": expected one shard for ", real_device_name(real), ", got ",
               std::ranges::count(devices, real_device_name(real)), ".");
    by_device.push_back(shards[static_cast<size_t>(it - devices.begin())].to(tensor.scalar_type()));
  }
  const c10::AutoGradMode no_grad(false);
  const spmd::Sharding* split = dispatch::sharding_of(tensor);
  TXLA_CHECK_KIND(util::ErrorKind::NotImplemented, split == nullptr || !split->is_manual, kWho,
                  ": expected a tensor of all devices, got a manual one. Load the shards into the "
                  "tensor that enable_manual_sharding takes.");
  TXLA_CHECK(split != nullptr && !split->is_replicated(), kWho,
             ": expected a tensor that is split, got one that each device has the whole of. Use "
             "copy_().");
  at::Tensor target = tensor;
  target.copy_(tensor_of(by_device, *split, tensor.sizes(), kWho));
}

at::Tensor from_cpu_shards(const std::vector<at::Tensor>& shards, const OpSharding& op_sharding,
                           const std::optional<std::vector<int64_t>>& global_shape) {
  constexpr const char* kWho = "_global_tensor_from_cpu_shards";
  TXLA_CHECK(!shards.empty(), kWho, ": expected shards, got none.");
  TXLA_CHECK_KIND(util::ErrorKind::Value, !op_sharding.is_manual, kWho,
                  ": expected an OpSharding that splits a value, got {manual}.");
  const spmd::Sharding* s = op_sharding.of_rank(shards[0].dim());
  std::vector<int64_t> sizes = shards[0].sizes().vec();
  const std::vector<int64_t> parts = s->parts();
  TXLA_CHECK(sizes.size() == parts.size(), kWho, ": expected shards of ", parts.size(),
             " dimensions for ", op_sharding.text(), ", got one of the sizes ", shards[0].sizes(),
             ".");
  for (size_t i = 0; i < sizes.size(); ++i) sizes[i] *= parts[i];
  if (global_shape) sizes = *global_shape;
  const at::Tensor made = tensor_of(shards, *s, sizes, kWho);
  dispatch::mark_sharding(made, s);
  return made;
}

// The mesh of a sharding, (names, sizes, devices), and the indices of its axes along each
// dimension; None where it splits along parts of axes.
py::object axes_of(const OpSharding& given) {
  const spmd::Sharding* s = given.sharding;
  std::vector<std::vector<size_t>> dims;
  for (const auto& axes : s->dims) {
    std::vector<size_t>& dim = dims.emplace_back();
    for (const spmd::Axis& axis : axes) {
      if (axis.size != s->mesh->sizes[axis.index]) return py::none();
      dim.push_back(axis.index);
    }
  }
  return py::make_tuple(s->mesh->names, s->mesh->sizes, s->mesh->devices, dims);
}

// `planner` takes a platform and its number of devices, a program (read_program), the OpSharding of
// each parameter or None, and of each result the parameter that it takes the place of or -1. It
// returns an OpSharding or None for each parameter, and one for results of calls, as (call, index,
// sharding).
executor::SplitPlan ask(const py::function& planner, const executor::PlanRequest& request) {
  const py::gil_scoped_acquire gil;
  py::list leaves;
  for (const spmd::Sharding* s : request.leaves) {
    leaves.append(s == nullptr ? py::object(py::none()) : py::cast(OpSharding{s}));
  }
  const auto [of_leaves, of_results] =
      planner(request.platform, request.num_devices, read_program(request.text), leaves,
              request.replaces)
          .cast<std::pair<std::vector<std::optional<OpSharding>>,
                          std::vector<std::tuple<uint32_t, uint32_t, OpSharding>>>>();
  executor::SplitPlan plan;
  auto results = std::make_shared<executor::ValueSplits>();
  for (const auto& leaf : of_leaves) {
    plan.leaves.push_back(leaf ? leaf->sharding : nullptr);
    if (leaf) plan.mesh = leaf->sharding->mesh;
  }
  for (const auto& [call, index, sharding] : of_results) {
    results->emplace(std::pair(call, index), sharding.sharding);
    plan.mesh = sharding.sharding->mesh;
  }
  TXLA_CHECK(plan.leaves.size() == request.leaves.size(), "auto-sharding: expected a choice for ",
             request.leaves.size(), " parameters, got ", plan.leaves.size(), ".");
  plan.results = std::move(results);
  return plan;
}

void set_planner(const py::function& planner) {
  // It goes with the process: modules may be gone when static objects are.
  auto* kept = new py::function(planner);
  executor::set_split_planner(
      [kept](const executor::PlanRequest& request) { return ask(*kept, request); });
}

}  // namespace

void init_sharding(py::module_& m) {
  py::class_<OpSharding>(m, "OpSharding")
      .def(py::init(&make_op_sharding), py::arg("tile_assignment"), py::arg("group_assignment"),
           py::arg("replication_groups"), py::arg("sharding_type"))
      .def_static("along", &along_mesh, py::arg("names"), py::arg("sizes"), py::arg("devices"),
                  py::arg("spec"))
      .def("__str__", &OpSharding::text)
      .def("__repr__", &OpSharding::text)
      .def("__eq__", [](const OpSharding& a, const OpSharding& b) { return a.text() == b.text(); })
      .def("__hash__", [](const OpSharding& s) { return std::hash<std::string>()(s.text()); })
      .def_property_readonly("axes", &axes_of)
      // The sizes of a tile assignment, of which the last counts copies, and its devices row by
      // row, as its text says them; None for a text that splits nothing.
      .def_static("tiles",
                  [](const std::string& text) -> std::optional<std::pair<Dims, Dims>> {
                    auto tiles = spmd::TileAssignment::read(text);
                    if (!tiles || tiles->parts.empty()) return std::nullopt;
                    if (!tiles->replicates) tiles->parts.push_back(1);
                    return std::pair(std::move(tiles->parts), std::move(tiles->devices));
                  })
      // The text that torch_xla::sharding_constraint takes.
      .def("constraint", [](const OpSharding& s, int64_t rank) { return s.of_rank(rank)->text; });
  // The text of what mark_sharding() has said, as torch_xla::sharding_constraint takes it.
  m.def("_asked_sharding", [](const at::Tensor& t) {
    const lazy::TensorImpl& impl = lazy::expect_lazy(t, "_asked_sharding");
    const lazy::GraphLock lock;
    const spmd::Sharding* s = dispatch::asked_sharding(impl);
    return s == nullptr ? std::string() : s->text;
  });
  m.def("_xla_mark_sharding", [](const at::Tensor& t, const OpSharding& s) {
    static const debug::Counter marks("XlaMarkSharding");
    marks.add();
    const spmd::Sharding* sharding = s.of_rank(t.dim());
    dispatch::expect_unmarked(t, sharding);
    dispatch::mark_sharding(t, sharding);
  });
  // The same, whatever the tensor is split as.
  m.def("_split_anew", [](const at::Tensor& t, const OpSharding& s) {
    dispatch::mark_sharding(t, s.of_rank(t.dim()));
  });
  m.def("_xla_annotate_custom_sharding", [](const at::Tensor& t, const OpSharding& s) {
    static const debug::Counter annotations("XlaAnnotateCustomSharding");
    annotations.add();
    dispatch::annotate_sharding(t, s.of_rank(t.dim()));
  });
  m.def("_xla_clear_sharding", &dispatch::clear_sharding);
  m.def("_send_to_all_devices", [](const std::vector<at::Tensor>& tensors) {
    const pjrt::Devices& devices = executor::Runtime::get().devices(0);
    int device = 0;
    const std::vector<lazy::Value> values =
        present_values(tensors, "_send_to_all_devices", &device);
    const lazy::GraphLock lock;
    for (const lazy::Value& value : values) {
      if (!value.node->is_data()) continue;
      pjrt::Array& array = *value.node->data().array;
      if (!array.is_deleted() && !array.is_given_away()) executor::send(array, devices);
    }
  });
  m.def("_get_xla_sharding_spec", &spec_of);
  m.def("_get_xla_sharding_specs", [](const std::vector<at::Tensor>& tensors) {
    std::vector<std::string> all;
    for (const at::Tensor& t : tensors) all.push_back(spec_of(t));
    return all;
  });
  m.def("_get_xla_sharding_type", [](const at::Tensor& t) -> std::optional<int> {
    const spmd::Sharding* s = dispatch::sharding_of(t);
    if (s != nullptr) return static_cast<int>(type_of(*s));
    if (!dispatch::is_on_all_devices(t)) return std::nullopt;
    return static_cast<int>(Type::Replicated);
  });
  m.def("_get_xla_op_sharding", [](const at::Tensor& t) -> std::optional<OpSharding> {
    const spmd::Sharding* s = dispatch::sharding_of(t);
    if (s == nullptr) return std::nullopt;
    return OpSharding{s, s->is_manual};
  });
  m.def("_is_manual", [](const at::Tensor& t) {
    if (!spmd::Sharding::any_manual() || lazy::as_lazy(t) == nullptr) return false;
    const spmd::Sharding* s = dispatch::sharding_of(t);
    return s != nullptr && s->is_manual;
  });
  // On how many devices each part is, by the text of a sharding.
  m.def("_copies_of_parts", [](const std::string& text) {
    const spmd::Sharding* s = spmd::Sharding::read(text);
    return s->num_devices() / s->num_parts();
  });
  m.def("_mark_manual_sharding", [](const at::Tensor& t, const OpSharding& s) {
    TXLA_CHECK_KIND(util::ErrorKind::Value, s.is_manual,
                    "_mark_manual_sharding: expected an OpSharding of the type MANUAL, got ",
                    s.text(), ".");
    dispatch::mark_manual(t, s.of_rank(t.dim()));
  });
  m.def("_spmd_full_to_shard_shape", &full_to_shard_shape);
  m.def("_spmd_shard_to_full_shape", &shard_to_full_shape);
  m.def("_load_local_shards", &load_local_shards);
  m.def("_global_tensor_from_cpu_shards", &from_cpu_shards, py::arg("shards"), py::arg("sharding"),
        py::arg("global_shape") = std::nullopt);
  // The transfers between devices of the program that was used last, (kind, bytes) each; `index`
  // counts back to programs that were used before it.
  m.def("_xla_collectives", [](size_t index) {
    const auto programs = executor::cached_programs();
    TXLA_CHECK_KIND(util::ErrorKind::Index, index < programs.size(),
                    "collectives: expected one of ", programs.size(), " programs, got ", index,
                    ".");
    std::vector<std::pair<std::string, int64_t>> all;
    for (const auto& executable : programs[index]->executables) {
      const pjrt::OptimizedModule module = executable->optimized_module();
      for (spmd::Collective& c : spmd::read_collectives(module.bytes, module.with_config())) {
        all.emplace_back(std::move(c.kind), c.bytes);
      }
    }
    return all;
  });
  m.def("_set_split_planner", &set_planner);
  m.def("_get_local_shards", &shards_of_devices);
  m.def("_get_local_shard_replica_and_indices", &replicas_and_indices);
}

}  // namespace torch_xla::python
