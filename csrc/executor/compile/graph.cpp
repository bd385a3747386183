#include "executor/compile/graph.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <set>
#include <tuple>
#include <unordered_map>

#include <ATen/Context.h>
#include <c10/util/accumulate.h>

#include "executor/run/array_types.h"
#include "executor/run/runtime.h"
#include "lazy/operator.h"
#include "lazy/tensor.h"
#include "ops/lowering.h"
#include "ops/manual_sharding.h"
#include "ops/sharding_constraint.h"
#include "pjrt/buffer.h"
#include "util/error.h"
#include "util/flags.h"

namespace torch_xla::executor {
namespace {

using lazy::Geometry;
using lazy::Node;
using lazy::Signature;
using lazy::Value;

constexpr auto kStays = std::numeric_limits<uint32_t>::max();  // uses of what a call needs

uint32_t references(const Node* node) {
  return c10::raw::intrusive_ptr::use_count(const_cast<Node*>(node));
}

}  // namespace

Graph::Graph(std::vector<Value> values, int device_index, const std::vector<const Node*>* ending,
             const std::vector<WantedSplit>& wanted, bool takes_offers)
    : offers_taken(takes_offers), device(device_index) {
  results = std::move(values);
  lazy::FunctionKey of_calls;
  walk(of_calls);
  util::Hasher& h = of_calls.hasher();
  structure = h.finish();
  for (const Node* leaf : parameters) {
    if (const spmd::Sharding* s = leaf->data().array->sharding()) h.add(leaf->place).add(s->hash);
  }
  if (Runtime::get().devices(device).all.size() > 1) choose_shardings(wanted);
  for (const spmd::Sharding* s : shardings) h.add(s == nullptr ? util::Hash128() : s->hash);
  reused_by.assign(parameters.size(), -1);
  if (ending != nullptr) {
    find_survivors(*ending);
    choose_reuse();
  }
  for (const int32_t result : reused_by) {
    h.add(static_cast<uint64_t>(static_cast<int64_t>(result)));
  }
  h.add(static_cast<uint64_t>(device)).add(Runtime::get().devices(device).all.size());
  h.add_bytes(util::flags::cache_key_text());
  h.add(static_cast<uint64_t>(at::globalContext().float32MatmulPrecision()));
  key = h.finish();
}

Interface Graph::interface() const {
  Interface all;
  all.num_floats = numbers.floats.size();
  all.num_ints = numbers.ints.size();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Node& leaf = *parameters[i];
    const pjrt::Array& array = *leaf.data().array;
    all.parameters.push_back({&leaf.output(0), held_dtype(array), reused_by[i], array.sharding()});
  }
  all.mesh = mesh;
  all.results = shardings;
  if (mesh != nullptr && plan != nullptr) all.values = plan->results;
  return all;
}

void Graph::walk(lazy::FunctionKey& of_calls) {
  const ConstantNumbers& constants = constant_numbers();
  const auto enter = [&](const Value& value) {
    const Node* node = value.node.get();
    if (nodes.contains(node)) return false;
    if (!node->is_data()) return true;
    TXLA_CHECK(node->data().array != nullptr,
               "xla: expected a tensor with a value, got a "
               "placeholder. Values cannot be read while a function is being recorded.");
    nodes.add(node);
    uses_.push_back(0);
    parameters.push_back(node);
    of_calls.parameter(node->output(0));
    if (ops::has_narrowed()) {
      of_calls.hasher().add(static_cast<uint64_t>(held_dtype(*node->data().array)));
    }
    return false;
  };
  const auto leave = [&](const Node& call) {
    nodes.add(&call);
    uses_.push_back(0);
    calls.push_back(&call);
    const Signature& s = call.signature();
    of_calls.call(s);
    for (const Value& operand : call.operands()) {
      ++uses_[operand.node->place];
      of_calls.value(operand.node->place, operand.index);
    }
    for (size_t i = 0; i < s.numbers.size(); ++i) {
      const lazy::Number& number = call.numbers()[i];
      if (constants.contains(s, call.numbers(), i)) [[unlikely]] {
        of_calls.constant(i, number);
      } else {
        numbers.add(number, s.numbers[i]);
      }
    }
  };
  lazy::visit(results, enter, leave);
  for (const Value& root : results) of_calls.value(root.node->place, root.index);
}

size_t count_inputs(const Graph& graph) {
  std::set<std::tuple<lazy::NumberKind, int64_t, double>> numbers;
  bool draws = false;
  for (const lazy::Node* call : graph.calls) {
    const lazy::Signature& signature = call->signature();
    for (size_t i = 0; i < signature.numbers.size(); ++i) {
      const lazy::NumberKind kind = signature.numbers[i];
      const lazy::Number& n = call->numbers()[i];
      const bool is_real = kind == lazy::NumberKind::Float || kind == lazy::NumberKind::Complex;
      const bool is_zero_or_one =
          n.imag == 0 && (is_real ? n.real == 0 || n.real == 1 : n.integer == 0 || n.integer == 1);
      if (signature.is_seed(i)) {
        draws = true;
      } else if (!is_zero_or_one) {
        numbers.emplace(kind, is_real ? std::bit_cast<int64_t>(n.real) : n.integer, n.imag);
      }
    }
  }
  return graph.parameters.size() + numbers.size() + (draws ? 1 : 0);
}

bool Dependents::contains(const Node* start) {
  const auto is = [this](const Node* node) { return is_computed(node) || later_.is(node, true); };
  // A leaf of the graph needs nothing of it.
  const auto known = [&](const Node* node) {
    return graph_.nodes.contains(node) || later_.contains(node);
  };
  std::vector<const Node*> stack = {start};
  while (!stack.empty()) {
    const Node* node = stack.back();
    if (!known(node)) {
      const size_t depth = stack.size();
      bool depends = false;
      for (const Value& operand : node->operands()) {
        if (!known(operand.node.get())) stack.push_back(operand.node.get());
        // What has no operands is as cheap to compute twice.
        depends = depends || (is(operand.node.get()) && !operand.node->operands().empty());
      }
      if (!depends && stack.size() > depth) continue;  // comes back to it
      stack.resize(depth);
      later_.add(node, depends);
    }
    stack.pop_back();
  }
  return is(start);
}

namespace {

bool gives_few_integers(const Signature& call) {
  constexpr int64_t kFew = 1 << 14;
  if (call.num_seeds != 0 || !call.op->name.starts_with("aten::")) return false;
  return std::ranges::all_of(call.outputs, [](const Geometry* output) {
    return output != nullptr && c10::isIntegralType(output->dtype, /*includeBool=*/true) &&
           c10::multiply_integers(output->sizes) <= kFew;
  });
}

}  // namespace

bool FromNumbers::contains(const Node* start) {
  const auto is = [this](bool answer) {
    return [this, answer](const Value& v) { return known_.is(v.node.get(), answer); };
  };
  std::vector<const Node*> stack = {start};
  while (!stack.empty()) {
    const Node* node = stack.back();
    if (known_.contains(node)) {
      stack.pop_back();
    } else if (node->is_data() || !gives_few_integers(node->signature()) ||
               std::ranges::any_of(node->operands(), is(false))) {
      known_.add(node, false);
    } else if (std::ranges::all_of(node->operands(), is(true))) {
      known_.add(node, true);
    } else {
      for (const Value& operand : node->operands()) {
        if (!is(true)(operand)) stack.push_back(operand.node.get());
      }
    }
  }
  return known_.is(start, true);
}

// A call that somebody goes on referring to may be computed again: what it reads must stay. Marks
// such operands by a number of uses that nothing has.
void Graph::find_survivors(const std::vector<const Node*>& ending) {
  std::vector<bool> becomes_data(nodes.size());
  for (const Value& root : results) {
    ++uses_[root.node->place];
    if (root.node->num_outputs() == 1) becomes_data[root.node->place] = true;
  }
  for (const Node* call : ending) {
    if (nodes.contains(call)) ++uses_[call->place];
  }
  for (auto it = calls.rbegin(); it != calls.rend(); ++it) {  // users before operands
    const Node* call = *it;
    if (becomes_data[call->place] || references(call) == uses_[call->place]) continue;
    for (const Value& operand : call->operands()) uses_[operand.node->place] = kStays;
  }
}

// The leaves under values that go on waiting.
std::unordered_set<const Node*> Graph::needed_later() const {
  std::set<std::pair<const Node*, uint32_t>> given;
  for (const Value& root : results) given.emplace(root.node.get(), root.index);
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> stack;
  const auto visit = [&](const Value& value) {
    const bool becomes_data =
        value.node->num_outputs() == 1 && given.contains({value.node.get(), 0});
    if (!becomes_data && seen.insert(value.node.get()).second) stack.push_back(value.node.get());
  };
  lazy::Storage::for_each_pending(device, [&](lazy::Storage& storage) {
    const Value value = storage.value();
    if (!given.contains({value.node.get(), value.index})) visit(value);
  });
  while (!stack.empty()) {
    const Node* node = stack.back();
    stack.pop_back();
    for (const Value& operand : node->operands()) visit(operand);
  }
  return seen;
}

// What was offered by hand and no call that waits needs, whichever tensors refer to it.
std::unordered_set<const Node*> Graph::taken_by_hand() const {
  std::unordered_set<const Node*> taken;
  if (!offers_taken) return taken;
  for (const Node* leaf : parameters) {
    if (leaf->data().array->is_offered() && uses_[leaf->place] != kStays) taken.insert(leaf);
  }
  if (taken.empty()) return taken;
  for (const Node* leaf : needed_later()) taken.erase(leaf);
  return taken;
}

// Parameters whose memory nobody needs after the run, each with the type that a result must have.
std::vector<std::pair<size_t, const Geometry*>> Graph::free_parameters() const {
  std::vector<std::pair<size_t, const Geometry*>> free;
  const std::unordered_set<const Node*> by_hand = taken_by_hand();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Node* leaf = parameters[i];
    const std::shared_ptr<pjrt::Array>& array = leaf->data().array;
    if (!leaf->data().donatable || array.use_count() != 1 + array->waiting_runs()) continue;
    if (references(leaf) != uses_[leaf->place] && !by_hand.contains(leaf)) continue;
    const Geometry& g = leaf->output(0);
    if (ops::has_narrowed() && held_dtype(*array) != ops::device_dtype(g.dtype)) {
      continue;  // it was made under other flags
    }
    free.emplace_back(i, g.row_major());
  }
  return free;
}

// For each root, the leaf that it is most likely an update of. Calls that update take what they
// write first, and several values in the order of their results.
std::vector<const Node*> Graph::updated_leaves() const {
  std::vector<const Node*> leaf_of(nodes.size());  // by place
  for (const Node* leaf : parameters) leaf_of[leaf->place] = leaf;
  const auto follow = [&](const Node* node, size_t operand) -> const Node* {
    if (node->is_data()) return node;
    const auto& operands = node->operands();
    return operand < operands.size() ? leaf_of[operands[operand].node->place] : nullptr;
  };
  for (const Node* call : calls) leaf_of[call->place] = follow(call, 0);
  std::vector<const Node*> updated;
  for (const Value& root : results) updated.push_back(follow(root.node.get(), root.index));
  return updated;
}

// The rule: a result has the sharding that was asked for; what takes the place of data is split as
// that is, or as the constraint says that makes it; all else is split as the compiler chooses. A
// program in which nothing is split is computed by each device on its own. Manual results are so
// whatever they take the place of.
void Graph::choose_shardings(const std::vector<WantedSplit>& wanted) {
  ops::NamedShardings named;
  std::vector<const spmd::Sharding*>& all = named.all;
  for (const WantedSplit& w : wanted) {
    if (w.sharding != nullptr) all.push_back(w.sharding);
  }
  for (const Node* leaf : parameters) {
    if (const spmd::Sharding* s = leaf->data().array->sharding()) all.push_back(s);
  }
  for (const Node* call : calls) named.add(call->signature());
  plan = plan_of(structure);
  if (plan != nullptr && plan->mesh != nullptr) {
    all.push_back(spmd::Sharding::replicated(plan->mesh, 0));
  }
  if (all.empty() && !has_split_planner()) return;
  find_replaced(wanted);
  if (all.empty()) return;
  mesh = named.common_mesh();
  shardings.resize(results.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    const auto& sizes = results[i].geometry().sizes;
    if (wanted[i].sharding != nullptr) {
      const spmd::Sharding* held = held_sharding(wanted[i].sharding, sizes);
      shardings[i] = held != nullptr ? held : whole(sizes.size());
    } else if (replaces[i] >= 0) {
      const pjrt::Array& array = *parameters[static_cast<size_t>(replaces[i])]->data().array;
      const Node& made = *results[i].node;
      const spmd::Sharding* s = array.sharding();
      if (const auto* said = made.is_data() ? nullptr : ops::sharding_given_by(made.signature())) {
        s = held_sharding(said, sizes);
      }
      shardings[i] = s != nullptr ? s : whole(sizes.size());
      if (shardings[i]->is_manual) shardings[i] = nullptr;  // unless the result is
    }
  }
  if (spmd::Sharding::any_manual()) choose_manual(wanted);
}

void Graph::choose_manual(const std::vector<WantedSplit>& wanted) {
  const lazy::Function of_run = function();
  ops::ManualValues manual(of_run);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const spmd::Sharding* s = parameters[i]->data().array->sharding();
    if (s != nullptr && s->is_manual) manual.add_parameter(i);
  }
  manual.add_results();
  for (size_t i = 0; i < results.size(); ++i) {
    if (!manual.contains(of_run.results[i])) continue;
    const Geometry& g = results[i].geometry();
    TXLA_CHECK_KIND(util::ErrorKind::Value, i >= wanted.size() || wanted[i].sharding == nullptr,
                    "mark_sharding: expected a value of all devices for the tensor that is split "
                    "by ",
                    wanted[i].sharding->shardy(), ", got a manual one of the sizes ",
                    at::IntArrayRef(g.sizes),
                    ", of which each device has its own. Use disable_manual_sharding first.");
    shardings[i] = spmd::Sharding::manual(mesh, g.sizes.size());
  }
}

void Graph::find_replaced(const std::vector<WantedSplit>& wanted) {
  std::unordered_map<uint64_t, int32_t> parameter_of;  // by Node::id()
  for (const Node* leaf : parameters) {
    parameter_of.emplace(leaf->id(), static_cast<int32_t>(parameter_of.size()));
  }
  replaces.assign(results.size(), -1);
  for (size_t i = 0; i < wanted.size(); ++i) {
    const auto replaced = parameter_of.find(wanted[i].replaced);
    if (replaced == parameter_of.end()) continue;
    const Geometry& there = parameters[static_cast<size_t>(replaced->second)]->output(0);
    if (there.sizes == results[i].geometry().sizes) replaces[i] = replaced->second;
  }
}

// The sharding that the result must have which takes over a parameter's buffers.
const spmd::Sharding* Graph::sharding_of_reuse(size_t parameter) {
  const Node& leaf = *parameters[parameter];
  const spmd::Sharding* s = leaf.data().array->sharding();
  return s != nullptr ? s->in_mesh(mesh) : whole(leaf.output(0).sizes.size());
}

// Steps have hundreds of values that are whole on each device, of a few ranks.
const spmd::Sharding* Graph::whole(size_t rank) {
  if (whole_.size() <= rank) whole_.resize(rank + 1);
  if (whole_[rank] == nullptr) whole_[rank] = spmd::Sharding::replicated(mesh, rank);
  return whole_[rank];
}

// The rule: a run takes over a buffer when all that refers to it are calls that end with the run,
// because nobody refers to them or because they become leaves. It may hold a result of its type;
// the update of its own value comes first, since the compiler copies whatever changes places.
void Graph::choose_reuse() {
  const std::vector<std::pair<size_t, const Geometry*>> free = free_parameters();
  if (free.empty()) return;
  std::unordered_map<const Node*, std::vector<int32_t>> updates;
  std::unordered_map<const Geometry*, std::vector<int32_t>> by_type;
  const std::vector<const Node*> updated = updated_leaves();
  std::vector<const Geometry*> types;
  for (size_t i = 0; i < results.size(); ++i) {  // the last one that is written comes first
    types.push_back(results[i].geometry().row_major());
    by_type[types.back()].push_back(static_cast<int32_t>(i));
    if (updated[i] != nullptr) updates[updated[i]].push_back(static_cast<int32_t>(i));
  }
  std::vector<bool> taken(results.size());
  const auto take = [&](size_t input, std::vector<int32_t>& from, const Geometry* type) {
    while (!from.empty() && reused_by[input] < 0) {
      const int32_t root = from.back();
      from.pop_back();
      if (taken[root] || types[root] != type) continue;
      if (mesh != nullptr && (shardings[root] == nullptr ||
                              shardings[root]->in_mesh(mesh) != sharding_of_reuse(input))) {
        continue;
      }
      taken[root] = true;
      reused_by[input] = root;
    }
  };
  for (const auto& [input, type] : free) {
    const auto it = updates.find(parameters[input]);
    if (it != updates.end()) take(input, it->second, type);
  }
  for (const auto& [input, type] : free) {
    if (const auto it = by_type.find(type); it != by_type.end()) take(input, it->second, type);
  }
}

}  // namespace torch_xla::executor
