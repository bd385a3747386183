#include "executor/program/lower.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/Context.h>

#include "cpu/host_failure.h"
#include "cpu/host_kernel.h"
#include "cpu/numbers.h"
#include "executor/program/lowerer.h"
#include "hlo/partition.h"
#include "hlo/recompute.h"
#include "ops/split_mix.h"
#include "util/error.h"
#include "util/flags.h"

namespace torch_xla::executor {
namespace {

using lazy::Function;
using lazy::Geometry;
using lazy::NumberKind;
using lazy::Signature;

// torch.set_float32_matmul_precision: "highest" is exact, "high" permits TF32 or three products of
// bf16, "medium" one product of bf16.
hlo::Precision float_precision() {
  switch (at::globalContext().float32MatmulPrecision()) {
    case at::Float32MatmulPrecision::HIGHEST:
      return hlo::Precision::Highest;
    case at::Float32MatmulPrecision::HIGH:
      return hlo::Precision::High;
    case at::Float32MatmulPrecision::MEDIUM:
      return hlo::Precision::Default;
  }
  return hlo::Precision::Highest;
}

hlo::Builder builder_for(const ops::Target& target) {
  hlo::Builder b;
  b.set_precision(float_precision());
  b.set_lacks(target.lacks);
  return b;
}

// The program of one call alone. Its numbers are zero.
std::string text_alone(const Signature& signature, const ops::Target& target) {
  hlo::Builder b = builder_for(target);
  std::vector<hlo::Type> types;
  for (const lazy::OperandInfo& info : signature.operands) {
    if (info.number < 0) types.push_back(ops::to_hlo(*info.geometry));
  }
  const hlo::Values tensors = b.begin_function("main", types);
  Lowerer(b, target).lower_alone(signature, tensors);
  b.end_function({});
  return b.finish();
}

}  // namespace

bool try_lowering(const Signature& signature, const ops::Target& target) {
  return text_alone(signature, target).find(cpu::kHostKernelTarget) != std::string::npos;
}

CallFacts facts_of(const Signature& signature, const ops::Target& target) {
  const std::string text = text_alone(signature, target);
  CallFacts facts{cpu::can_fail(text), 0};
  // Each operation stands as `= "name"(`.
  for (size_t at = text.find("= \""); at != std::string::npos; at = text.find("= \"", at)) {
    at += 3;
    const auto name = std::string_view(text).substr(at, text.find('"', at) - at);
    if (name == "stablehlo.constant") continue;
    const int64_t work = hlo::fused_work(name);
    if (work < 0) facts.work = std::nullopt;
    if (facts.work) *facts.work += work;
  }
  return facts;
}

std::vector<hlo::Type> types_by_rule(const Signature& signature) {
  const ops::Target target = ops::target_of(ops::kPortable);
  hlo::Builder b = builder_for(target);
  std::vector<hlo::Type> types;
  for (const lazy::OperandInfo& info : signature.operands) {
    types.push_back({lazy::to_hlo(info.geometry->dtype), info.geometry->sizes});
  }
  const hlo::Values tensors = b.begin_function("main", types);
  types.clear();
  for (const hlo::Value& v : Lowerer(b, target).apply_rule(signature, tensors, {})) {
    types.push_back(v.type());
  }
  return types;
}

namespace {

// XLA compiles equal kernels of a program once. Those that cut their numbers out of the packed ones
// differ in where they cut: 300 results `x * 2 + i` took 3.4 s to compile, and take 0.15 s where
// the numbers are cut for them; a training step of a GPT-2 of 12 small layers took 10.3 s, and
// takes 5.2.
constexpr int64_t kNumbersWorthCutting = 8;

// The attributes of arguments: the results that take over their buffers, or -1.
std::vector<hlo::Attributes> reuses(const std::vector<int32_t>& reused_by) {
  std::vector<hlo::Attributes> attributes(reused_by.size());
  for (size_t i = 0; i < reused_by.size(); ++i) {
    if (reused_by[i] < 0) continue;
    attributes[i].push_back({"tf.aliasing_output", hlo::attr::i32(reused_by[i])});
  }
  return attributes;
}

// What is not said to be whole, the compiler may split: numbers and seeds, which come last, are.
void add_argument_shardings(const hlo::Builder& b, std::vector<hlo::Attributes>& attributes,
                            const std::vector<const spmd::Sharding*>& shardings,
                            const std::vector<hlo::Type>& types) {
  attributes.resize(types.size());
  for (size_t i = 0; i < types.size(); ++i) {
    const spmd::Sharding* s = i < shardings.size() ? shardings[i] : nullptr;
    attributes[i].push_back(sharding_attribute(b, s, types[i].dims.size()));
  }
}

std::vector<hlo::Attributes> result_shardings(const hlo::Builder& b,
                                              const std::vector<const spmd::Sharding*>& shardings) {
  std::vector<hlo::Attributes> attributes;
  for (const spmd::Sharding* s : shardings) {
    hlo::Attributes& of_result = attributes.emplace_back();
    if (s != nullptr) of_result.push_back(sharding_attribute(b, s, s->dims.size()));
  }
  return attributes;
}

// Devices hold equal parts of a value: its array is padded where the parts do not divide it.
hlo::Value without_padding(const hlo::Value& held, const Parameter& parameter) {
  const spmd::Sharding* s = parameter.sharding;
  const hlo::Dims& sizes = parameter.geometry->sizes;
  if (s == nullptr || s->is_manual || held.dims() == sizes) return held;
  return hlo::slice(held, hlo::Dims(sizes.size(), 0), sizes, hlo::Dims(sizes.size(), 1));
}

hlo::Value with_padding(const hlo::Value& x, const spmd::Sharding* s) {
  if (s == nullptr || s->is_manual) return x;
  hlo::Dims high = s->held_sizes(x.dims());
  if (high == x.dims()) return x;
  for (size_t i = 0; i < high.size(); ++i) high[i] -= x.dims()[i];
  const hlo::Dims none(high.size(), 0);
  return hlo::pad(x, hlo::splat(x.builder(), 0, {x.dtype(), {}}), none, high, none);
}

// Of the whole function, or of a stretch of it.
std::string module_of(const Function& function, const Stretch* stretch, const Interface& interface,
                      const ops::Target& target, bool reuses_buffers, bool names_results = false) {
  hlo::Builder b = builder_for(target);
  const spmd::Mesh* mesh = interface.mesh;
  if (mesh != nullptr) add_mesh(b, mesh);
  std::vector<hlo::Type> types;
  std::vector<int32_t> reused_by;
  for (const Parameter& parameter : interface.parameters) {
    const auto& sizes = parameter.geometry->sizes;
    types.push_back({ops::to_hlo(parameter.dtype), parameter.sharding == nullptr
                                                       ? sizes
                                                       : parameter.sharding->held_sizes(sizes)});
    reused_by.push_back(reuses_buffers ? parameter.reused_by : -1);
  }
  const auto floats = static_cast<int64_t>(interface.num_floats);
  const auto ints = static_cast<int64_t>(interface.num_ints);
  if (floats != 0) types.push_back({hlo::DType::F64, {floats}});
  if (ints != 0) types.push_back({hlo::DType::S64, {ints}});

  std::vector<hlo::Attributes> attributes = reuses(reused_by), result_attributes;
  if (mesh != nullptr) {
    std::vector<const spmd::Sharding*> of_parameters;
    for (const Parameter& parameter : interface.parameters) {
      of_parameters.push_back(parameter.sharding);
    }
    add_argument_shardings(b, attributes, of_parameters, types);
    result_attributes = result_shardings(b, interface.results);
  }
  const hlo::Values given = b.begin_function("main", types, attributes);
  hlo::Values arguments;
  for (size_t i = 0; i < interface.parameters.size(); ++i) {
    const Parameter& parameter = interface.parameters[i];
    arguments.push_back(
        hlo::convert(without_padding(given[i], parameter), ops::to_hlo(*parameter.geometry).dtype));
  }
  Lowerer::NumberSource numbers;
  size_t next = arguments.size();
  if (floats != 0) numbers.floats.array = given[next++];
  if (ints != 0) numbers.ints.array = given[next++];
  if (target.host_kernels && floats + ints >= kNumbersWorthCutting) {
    const hlo::Values cut = cpu::cut_numbers(std::span(given).subspan(arguments.size()));
    numbers.floats.cut.assign(cut.begin(), cut.begin() + floats);
    numbers.ints.cut.assign(cut.begin() + floats, cut.end());
  }
  Lowerer lowerer(b, target);
  if (interface.values != nullptr) lowerer.set_splits(interface.values.get());
  if (names_results) lowerer.name_results();
  ops::ManualValues manual(function);
  for (size_t i = 0; stretch == nullptr && i < interface.parameters.size(); ++i) {
    const spmd::Sharding* s = interface.parameters[i].sharding;
    if (s != nullptr && s->is_manual) manual.add_parameter(i);
  }
  hlo::Values results = stretch != nullptr ? lowerer.lower(function, *stretch, arguments, numbers)
                                           : lowerer.lower(std::move(manual), arguments, &numbers);
  for (size_t i = 0; i < interface.results.size(); ++i) {
    results[i] = with_padding(results[i], interface.results[i]);
  }
  b.end_function(results, result_attributes);
  return b.finish();
}

Lowered lower_program(const Function& function, const Stretch* stretch, const Interface& interface,
                      const ops::Target& target) {
  Lowered lowered;
  lowered.reuses_buffers = std::ranges::any_of(interface.parameters,
                                               [](const Parameter& p) { return p.reused_by >= 0; });
  lowered.text = module_of(function, stretch, interface, target, lowered.reuses_buffers);
  lowered.can_fail = cpu::can_fail(lowered.text);
  if (lowered.can_fail && lowered.reuses_buffers) {
    lowered.reuses_buffers = false;  // a run that fails must leave its inputs as they are
    lowered.text = module_of(function, stretch, interface, target, false);
  }
  return lowered;
}

}  // namespace

void add_mesh(hlo::Builder& b, const spmd::Mesh* mesh) {
  if (!b.lacks().shardy) b.module_item("  sdy.mesh @mesh = " + mesh->text);
  b.set_mesh(mesh);
}

hlo::Attribute sharding_attribute(const hlo::Builder& b, const spmd::Sharding* sharding,
                                  size_t rank) {
  if (sharding == nullptr) sharding = spmd::Sharding::replicated(b.mesh(), rank);
  return hlo::sharding_attribute(b, *sharding->in_mesh(b.mesh()));
}

Lowered lower(const Function& function, const Interface& interface, const ops::Target& target) {
  if (interface.mesh == nullptr) return lower_program(function, nullptr, interface, target);
  ops::Target partitioned = target;
  partitioned.partitioned = true;
  return lower_program(function, nullptr, interface, partitioned);
}

std::string describe(const Function& function, const ops::Target& target, size_t num_devices) {
  Interface interface;
  for (const Geometry* parameter : function.parameters) {
    interface.parameters.push_back({parameter, ops::device_dtype(parameter->dtype)});
  }
  for (const Function::Call& call : function.calls) {
    for (const NumberKind kind : call.signature->numbers) {
      const bool is_float = kind == NumberKind::Float || kind == NumberKind::Complex;
      (is_float ? interface.num_floats : interface.num_ints) += kind == NumberKind::Complex ? 2 : 1;
    }
  }
  std::vector<int64_t> devices(num_devices);
  std::iota(devices.begin(), devices.end(), 0);
  interface.mesh = spmd::Mesh::of({"devices"}, {static_cast<int64_t>(num_devices)}, devices);
  ops::Target partitioned = target;
  partitioned.partitioned = true;
  return module_of(function, nullptr, interface, partitioned, false, true);
}

Lowered lower(const Function& function, const Stretch& stretch, const Interface& interface,
              const ops::Target& target) {
  return lower_program(function, &stretch, interface, target);
}

namespace {

std::vector<hlo::Values> seeds_of_calls(const Function& function, const SeedPlaces& places,
                                        const hlo::Value& counter) {
  std::vector<hlo::Values> seeds(function.calls.size());
  const ops::SplitMixOps in_program;
  auto place = places.used.begin();
  for (size_t c = 0; c < seeds.size(); ++c) {
    for (uint32_t i = 0; i < function.calls[c].signature->num_seeds; ++i) {
      const hlo::Value drawn = lazy::SplitMix::mixed(
          lazy::SplitMix::advanced(counter, *place++ + 1, in_program), in_program);
      seeds[c].push_back(hlo::bitcast_convert(drawn, {hlo::DType::S64, {}}));
    }
  }
  return seeds;
}

}  // namespace

std::string lower_portable(const Function& function, std::span<const at::Tensor> constants,
                           const PortableOptions& options) {
  ops::Target target = ops::target_of(options.platform);
  target.host_kernels = false;
  // XLA for the CPU is one of those compilers.
  if (target.platform == ops::kPortable) target.lacks.updates_from_self = true;
  target.lacks.fixed_sizes = options.dynamic_sizes;
  target.partitioned = options.mesh != nullptr;
  hlo::Builder b = builder_for(target);
  if (options.mesh != nullptr) add_mesh(b, options.mesh);
  const size_t count = function.parameters.size() - constants.size();
  std::vector<hlo::Type> types;
  for (size_t i = 0; i < count; ++i) types.push_back(ops::to_hlo(*function.parameters[i]));
  std::vector<int32_t> reused_by = options.reused_by;
  if (options.seeds) {
    types.push_back({hlo::DType::U64, {}});
    reused_by.resize(count, -1);
    reused_by.push_back(static_cast<int32_t>(function.results.size()));
  }
  std::vector<hlo::Attributes> attributes = reuses(reused_by), result_attributes;
  if (options.mesh != nullptr) {
    add_argument_shardings(b, attributes, options.arguments, types);
    result_attributes = result_shardings(b, options.results);
    if (options.seeds) result_attributes.resize(function.results.size() + 1);
  }
  hlo::Values arguments = b.begin_function("main", types, attributes);
  Lowerer::NumberSource numbers;
  numbers.all_constant = true;
  hlo::Value counter;
  if (options.seeds) {
    counter = arguments.back();
    arguments.pop_back();
    numbers.seeds = seeds_of_calls(function, *options.seeds, counter);
  }
  for (const at::Tensor& constant : constants) {
    const hlo::Value held = hlo::dense_bytes(
        b, {static_cast<const char*>(constant.const_data_ptr()), constant.nbytes()},
        {ops::to_hlo(constant.scalar_type()), constant.sizes().vec()});
    const Geometry& parameter = *function.parameters[arguments.size()];
    arguments.push_back(hlo::convert(held, ops::to_hlo(parameter).dtype));
  }
  Lowerer lowerer(b, target, options.with_locations);
  if (options.values != nullptr) lowerer.set_splits(options.values.get());
  hlo::Values results = lowerer.lower(ops::ManualValues(function), arguments, &numbers);
  if (options.seeds) {
    results.push_back(lazy::SplitMix::advanced(counter, options.seeds->count, ops::SplitMixOps()));
  }
  b.end_function(results, result_attributes);
  return b.finish();
}

}  // namespace torch_xla::executor
