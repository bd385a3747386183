#include "ops/manual_sharding.h"

#include <algorithm>
#include <map>

#include "hlo/collectives.h"
#include "hlo/ops.h"
#include "hlo/partition.h"
#include "lazy/function.h"
#include "lazy/operator.h"
#include "ops/lowering.h"
#include "util/error.h"

namespace torch_xla::ops {
namespace {

hlo::Split whole_on_each(const spmd::Mesh* mesh, const hlo::Type& type) {
  return {spmd::Sharding::replicated(mesh, type.dims.size()), type, type};
}

// The sharding of an array with an entry for every device.
hlo::Split entry_on_each(const spmd::Mesh* mesh, const hlo::Type& entry) {
  const spmd::Sharding* s = spmd::Sharding::manual(mesh, entry.dims.size());
  hlo::Type part = entry;
  part.dims.insert(part.dims.begin(), 1);
  return {s, {entry.dtype, s->held_sizes(entry.dims)}, part};
}

hlo::Dims without_first(const hlo::Dims& dims) { return {dims.begin() + 1, dims.end()}; }

// Returns whether a value is manual: an array of such entries.
bool is_array_of(const hlo::Value& x, const hlo::Type& entry) {
  return x.rank() == entry.rank() + 1;
}

hlo::Value as_entry(const hlo::Value& x) {
  hlo::Dims dims = x.dims();
  dims.insert(dims.begin(), 1);
  return hlo::reshape(x, dims);
}

// Lowers a boundary with one operand, which is given as a value split by `from`, or null: as an
// array of entries. The result likewise.
hlo::Value across(const hlo::Value& x, const hlo::Split& from,
                  const std::function<hlo::Value(const hlo::Value&)>& body, const hlo::Split& to) {
  return hlo::on_each_device(
      x.builder(), std::span(&x, 1), std::span(&from, 1),
      [&](std::span<const hlo::Value> given) { return hlo::Values{body(given[0])}; },
      [&](const hlo::Type&) { return to; })[0];
}

// The sharding along the axes of the program's mesh; null in the program of one device, where
// manual values are as all others.
const spmd::Sharding* in_program(Lowering& l) {
  const spmd::Sharding& named = sharding_named_by(l.signature());
  const spmd::Mesh* mesh = l.b.mesh();
  if (mesh == nullptr) {
    TXLA_CHECK_KIND(util::ErrorKind::NotImplemented, named.num_devices() == 1,
                    l.signature().op->name, ": expected a program for the ", named.num_devices(),
                    " devices of the mesh outside of manual code, got one for a single device.");
    return nullptr;
  }
  const spmd::Sharding* s = named.in_mesh(mesh);
  TXLA_CHECK(s->is_manual || s->has_whole_axes(), l.signature().op->name,
             ": expected a sharding along axes of the program's mesh, got ", s->shardy(), " in ",
             mesh->text, ". Please report this.");
  return s;
}

hlo::Split split_by(const spmd::Sharding& s, const hlo::Type& whole) {
  return {&s, whole, {whole.dtype, s.part_sizes(whole.dims)}};
}

hlo::Values full_to_shard(Lowering& l) {
  const hlo::Value x = l.in(0);
  const spmd::Sharding* s = in_program(l);
  if (s == nullptr) return {x};
  TXLA_CHECK_KIND(util::ErrorKind::Value, x.rank() == l.out().rank(),
                  "enable_manual_sharding: expected a tensor of the full shape, got a manual one.");
  return {across(x, split_by(*s, x.type()), as_entry, entry_on_each(s->mesh, l.out()))};
}

hlo::Values mark_manual(Lowering& l) {
  const hlo::Value x = l.in(0);
  const spmd::Sharding* s = in_program(l);
  if (s == nullptr || is_array_of(x, l.out())) return {x};
  return {across(x, whole_on_each(s->mesh, x.type()), as_entry, entry_on_each(s->mesh, l.out()))};
}

// The devices that have the same part.
hlo::Groups groups_of(const spmd::Sharding& s) {
  std::map<std::vector<int64_t>, std::vector<int64_t>> of_part;
  for (const int64_t device : s.mesh->devices) of_part[s.part_of(device)].push_back(device);
  hlo::Groups groups;
  for (auto& [part, devices] : of_part) groups.members.push_back(std::move(devices));
  return groups;
}

hlo::Values shard_to_full(Lowering& l) {
  const hlo::Value x = l.in(0);
  const spmd::Sharding* s = in_program(l);
  if (s == nullptr) return {x};
  const bool sum = l.flag(2);
  const hlo::Split to = split_by(*s, l.out());
  const hlo::Split from =
      is_array_of(x, to.part) ? entry_on_each(s->mesh, to.part) : whole_on_each(s->mesh, x.type());
  return {across(
      x, from,
      [&](const hlo::Value& given) {
        const hlo::Value part = hlo::reshape(given, to.part.dims);
        const auto groups = groups_of(*s);
        if (!sum || groups.size() == 1) return part;
        return hlo::all_reduce(part, hlo::reduction_by("add"), groups);
      },
      to)};
}

}  // namespace

Boundary boundary_of(const lazy::Signature& signature) {
  const Rule* rule = signature.op->rule;
  if (rule == nullptr) return Boundary::None;
  if (rule->lower == full_to_shard) return Boundary::Enters;
  if (rule->lower == mark_manual) return Boundary::Marks;
  return rule->lower == shard_to_full ? Boundary::Leaves : Boundary::None;
}

const spmd::Sharding& sharding_named_by(const lazy::Signature& signature) {
  return *spmd::Sharding::read(signature.arguments[1].value.toStringRef());
}

namespace {

bool expands_to_boundaries(const lazy::Signature& signature) {
  if (signature.expansion == nullptr || !spmd::Sharding::any_manual()) return false;
  return std::ranges::any_of(signature.expansion->calls, [](const lazy::Function::Call& call) {
    return boundary_of(*call.signature) != Boundary::None || expands_to_boundaries(*call.signature);
  });
}

}  // namespace

bool ManualValues::mixes(const lazy::Function::Call& call) const {
  const lazy::Signature& s = *call.signature;
  if (s.expansion == nullptr) return false;
  if (expands_to_boundaries(s)) return true;
  const auto is_there = [this](const lazy::Ref& r) { return contains(r); };
  const auto has_elements = [](const lazy::Geometry* g) { return g == nullptr || g->numel != 0; };
  return has_among_operands(call) && !std::ranges::all_of(function_->operands_of(call), is_there) &&
         std::ranges::any_of(s.outputs, has_elements);
}

bool ManualValues::contains(const lazy::Ref& value) const {
  const auto it = results_.find(value.index);
  return it != results_.end() && it->second.at(value.result);
}

bool ManualValues::has_among_operands(const lazy::Function::Call& call) const {
  return !empty() && std::ranges::any_of(function_->operands_of(call),
                                         [this](const lazy::Ref& r) { return contains(r); });
}

ManualValues ManualValues::parameters_of_expansion(const lazy::Function::Call& call) const {
  const lazy::Signature& s = *call.signature;
  ManualValues parameters(*s.expansion);
  size_t next = 0;
  for (size_t i = 0; i < s.operands.size(); ++i) {
    if (s.operands[i].number < 0 && contains(function_->operands_of(call)[next++])) {
      parameters.add_parameter(i);
    }
  }
  return parameters;
}

void ManualValues::add_results_of(size_t index) {
  const lazy::Function::Call& call = function_->calls[index];
  const lazy::Signature& s = *call.signature;
  std::vector<bool> results;
  if (mixes(call)) {
    ManualValues within = parameters_of_expansion(call);
    within.add_results();
    for (const lazy::Ref& r : s.expansion->results) results.push_back(within.contains(r));
  } else {
    const Boundary boundary = boundary_of(s);
    results.assign(s.outputs.size(), boundary == Boundary::None ? has_among_operands(call)
                                                                : boundary != Boundary::Leaves);
  }
  if (std::ranges::count(results, true) != 0) {
    results_[function_->index_of(index)] = std::move(results);
  }
}

void ManualValues::add_results() {
  for (size_t i = 0; i < function_->calls.size(); ++i) add_results_of(i);
}

hlo::Values on_each_device(hlo::Builder& b, std::span<const hlo::Value> operands,
                           const std::vector<bool>& is_manual,
                           const std::function<hlo::Values(const hlo::Values&)>& body) {
  const spmd::Mesh* mesh = b.mesh();
  hlo::Values given;
  std::vector<hlo::Split> splits;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!operands[i]) continue;
    const hlo::Type& type = operands[i].type();
    given.push_back(operands[i]);
    splits.push_back(is_manual[i] ? entry_on_each(mesh, {type.dtype, without_first(type.dims)})
                                  : whole_on_each(mesh, type));
  }
  std::vector<bool> is_there;
  const auto of_one = [&](std::span<const hlo::Value> parts) {
    hlo::Values values(operands.size());
    size_t next = 0;
    for (size_t i = 0; i < operands.size(); ++i) {
      if (!operands[i]) continue;
      const hlo::Value& part = parts[next++];
      values[i] = is_manual[i] ? hlo::reshape(part, without_first(part.dims())) : part;
    }
    hlo::Values entries;
    for (const hlo::Value& value : body(values)) {
      is_there.push_back(static_cast<bool>(value));
      if (value) entries.push_back(as_entry(value));
    }
    return entries;
  };
  const hlo::Values made =
      hlo::on_each_device(b, given, splits, of_one, [&](const hlo::Type& part) {
        return entry_on_each(mesh, {part.dtype, without_first(part.dims)});
      });
  hlo::Values results;
  size_t next = 0;
  for (const bool there : is_there) results.push_back(there ? made[next++] : hlo::Value());
  return results;
}

namespace rules {
const RuleFunction full_to_shard = ops::full_to_shard;
const RuleFunction mark_manual = ops::mark_manual;
const RuleFunction shard_to_full = ops::shard_to_full;
}  // namespace rules

}  // namespace torch_xla::ops
