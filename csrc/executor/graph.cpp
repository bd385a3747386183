#include "executor/graph.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>
#include <unordered_map>

#include <ATen/Context.h>

#include "executor/runtime.h"
#include "executor/transfer.h"
#include "lazy/operator.h"
#include "ops/host_kernel.h"
#include "ops/lowering.h"
#include "ops/target.h"
#include "util/error.h"
#include "util/flags.h"

namespace torch_xla::executor {
namespace {

using lazy::Geometry;
using lazy::Node;
using lazy::NumberKind;
using lazy::Signature;
using lazy::Value;

uint64_t next_walk() {
  static uint64_t counter = 0;  // guarded by the graph lock
  return ++counter;
}

uint32_t references(const Node* node) {
  return c10::raw::intrusive_ptr::use_count(const_cast<Node*>(node));
}

}  // namespace

void PackedNumbers::add(const lazy::Number& number, NumberKind kind) {
  switch (kind) {
    case NumberKind::Float:
      floats.push_back(number.real);
      break;
    case NumberKind::Complex:
      floats.push_back(number.real);
      floats.push_back(number.imag);
      break;
    case NumberKind::Int:
    case NumberKind::UInt:
    case NumberKind::Bool:
      ints.push_back(number.integer);
      break;
  }
}

ConstantNumbers& constant_numbers() {
  static ConstantNumbers constants;
  return constants;
}

bool ConstantNumbers::contains(const Signature& s, const lazy::Numbers& numbers, size_t i) const {
  if (!zero_and_one && !all) [[likely]]
    return false;
  if (s.has_seed && i + 1 == numbers.size()) return false;
  if (all) return true;
  const lazy::Number& n = numbers[i];
  const bool is_real = s.numbers[i] == NumberKind::Float || s.numbers[i] == NumberKind::Complex;
  return is_real ? n.imag == 0 && (n.real == 0 || n.real == 1) : n.integer == 0 || n.integer == 1;
}

Graph::Graph(std::vector<Value> wanted, int device_index, const std::vector<const Node*>* ending)
    : roots(std::move(wanted)), device(device_index) {
  util::Hasher h;
  walk(h);
  aliases.assign(inputs.size(), -1);
  if (ending != nullptr) {
    find_survivors(*ending);
    choose_aliases();
  }
  for (const int32_t alias : aliases) h.add(static_cast<uint64_t>(static_cast<int64_t>(alias)));
  h.add(static_cast<uint64_t>(device)).add(Runtime::get().devices(device).size());
  h.add_bytes(util::flags::cache_key_text());
  h.add(static_cast<uint64_t>(at::globalContext().float32MatmulPrecision()));
  key = h.finish();
}

void Graph::walk(util::Hasher& h) {
  const uint64_t walk = next_walk();
  uint32_t ordinal = 0;
  const ConstantNumbers& constants = constant_numbers();
  // Depth first without recursion: graphs are deeper than stacks.
  std::vector<std::pair<const Node*, size_t>> stack;
  const auto visit_leaf = [&](const Node* node) {
    TXLA_CHECK(node->data().array != nullptr,
               "xla: expected a tensor with a value, got a "
               "placeholder. Values cannot be read while an operator is being decomposed.");
    node->ordinal = ordinal++;
    inputs.push_back(node);
    h.add(0xda7a).add(node->output(0).hash);
    if (ops::has_narrowed()) h.add(static_cast<uint64_t>(held_dtype(*node->data().array)));
  };
  const auto enter = [&](const Node* node) {
    if (node->walk == walk) return;
    node->walk = walk;
    node->uses = 0;
    if (node->is_data()) {
      visit_leaf(node);
    } else {
      stack.emplace_back(node, 0);
    }
  };
  for (const Value& root : roots) {
    enter(root.node.get());
    while (!stack.empty()) {
      auto& [node, next] = stack.back();
      if (next < node->operands().size()) {
        const Node* operand = node->operands()[next++].node.get();
        enter(operand);  // may move the stack: `node` and `next` are not used after this
        continue;
      }
      const Node* done = node;
      stack.pop_back();
      done->ordinal = ordinal++;
      calls.push_back(done);
      const Signature& s = done->signature();
      h.add(s.key);
      for (const Value& operand : done->operands()) {
        ++operand.node->uses;
        h.add((uint64_t{operand.node->ordinal} << 32) | operand.index);
      }
      for (size_t i = 0; i < s.numbers.size(); ++i) {
        const lazy::Number& number = done->numbers()[i];
        if (constants.contains(s, done->numbers(), i)) [[unlikely]] {
          h.add(0xc0de + i).add(static_cast<uint64_t>(number.integer));
          h.add(std::bit_cast<uint64_t>(number.imag));
        } else {
          numbers.add(number, s.numbers[i]);
        }
      }
    }
    h.add((uint64_t{root.node->ordinal} << 32) | root.index);
  }
}

Dependents::Dependents(const Graph& graph) : yes_(next_walk()), no_(next_walk()) {
  for (const Node* call : graph.calls) call->walk = yes_;
}

bool Dependents::contains(const Node* start) const {
  const auto known = [this](const Node* node) { return node->walk == yes_ || node->walk == no_; };
  std::vector<const Node*> stack = {start};
  while (!stack.empty()) {
    const Node* node = stack.back();
    if (!known(node)) {
      const size_t depth = stack.size();
      bool depends = false;
      for (const Value& operand : node->operands()) {
        if (!known(operand.node.get())) stack.push_back(operand.node.get());
        // What has no operands is as cheap to compute twice.
        depends = depends || (operand.node->walk == yes_ && !operand.node->operands().empty());
      }
      if (!depends && stack.size() > depth) continue;  // comes back to it
      stack.resize(depth);
      node->walk = depends ? yes_ : no_;
    }
    stack.pop_back();
  }
  return start->walk == yes_;
}

// A call that somebody goes on referring to may be computed again: what it reads must stay. Marks
// such operands by a number of uses that nothing has.
void Graph::find_survivors(const std::vector<const Node*>& ending) {
  constexpr auto kStays = std::numeric_limits<uint32_t>::max();
  const uint64_t becomes_data = next_walk();
  for (const Value& root : roots) {
    ++root.node->uses;
    if (root.node->num_outputs() == 1) root.node->walk = becomes_data;
  }
  for (const Node* call : ending) ++call->uses;
  for (auto it = calls.rbegin(); it != calls.rend(); ++it) {  // users before operands
    const Node* call = *it;
    if (call->walk == becomes_data || references(call) == call->uses) continue;
    for (const Value& operand : call->operands()) operand.node->uses = kStays;
  }
}

// For each root, the leaf that it is most likely an update of. Calls that update take what they
// write first, and several values in the order of their results.
std::vector<const Node*> Graph::updated_leaves() const {
  std::vector<const Node*> leaf_of(inputs.size() + calls.size());  // by ordinal
  for (const Node* leaf : inputs) leaf_of[leaf->ordinal] = leaf;
  const auto follow = [&](const Node* node, size_t operand) -> const Node* {
    if (node->is_data()) return node;
    const auto& operands = node->operands();
    return operand < operands.size() ? leaf_of[operands[operand].node->ordinal] : nullptr;
  };
  for (const Node* call : calls) leaf_of[call->ordinal] = follow(call, 0);
  std::vector<const Node*> updated;
  for (const Value& root : roots) updated.push_back(follow(root.node.get(), root.index));
  return updated;
}

// The rule: a run takes over a buffer when all that refers to it are calls that end with the run,
// because nobody refers to them or because they become leaves. It may hold a result of its type;
// the update of its own value comes first, since the compiler copies whatever changes places.
void Graph::choose_aliases() {
  std::unordered_map<const Node*, std::vector<int32_t>> updates;
  std::unordered_map<const Geometry*, std::vector<int32_t>> by_type;
  const std::vector<const Node*> updated = updated_leaves();
  std::vector<const Geometry*> types;
  for (size_t i = 0; i < roots.size(); ++i) {  // the last one that is written comes first
    const Geometry& g = roots[i].geometry();
    types.push_back(lazy::intern_contiguous(g.dtype, g.sizes));
    by_type[types.back()].push_back(static_cast<int32_t>(i));
    if (updated[i] != nullptr) updates[updated[i]].push_back(static_cast<int32_t>(i));
  }
  std::vector<bool> taken(roots.size());
  const auto take = [&](size_t input, std::vector<int32_t>& from, const Geometry* type) {
    while (!from.empty() && aliases[input] < 0) {
      const int32_t root = from.back();
      from.pop_back();
      if (taken[root] || types[root] != type) continue;
      taken[root] = true;
      aliases[input] = root;
    }
  };
  std::vector<std::pair<size_t, const Geometry*>> others;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Node* leaf = inputs[i];
    if (!leaf->data().donatable || leaf->data().array.use_count() != 1) continue;
    if (references(leaf) != leaf->uses) continue;
    const Geometry& g = leaf->output(0);
    if (ops::has_narrowed() && held_dtype(*leaf->data().array) != ops::device_dtype(g.dtype)) {
      continue;  // it was made under other flags
    }
    const Geometry* type = lazy::intern_contiguous(g.dtype, g.sizes);
    if (const auto it = updates.find(leaf); it != updates.end()) take(i, it->second, type);
    if (aliases[i] < 0) others.emplace_back(i, type);
  }
  for (const auto& [input, type] : others) {
    if (const auto it = by_type.find(type); it != by_type.end()) take(input, it->second, type);
  }
}

namespace {

// The operator and its scope, then the frames that called it, in the form that XLA makes stack
// frames of: loc("Net.forward/aten::mm"(callsite("Net.forward"("net.py":3:0) at ...))).
std::string location_text(const std::string& op, const lazy::SourceFrames& frames) {
  std::string lines, close;
  for (size_t i = 0; i < frames.size(); ++i) {
    const std::string line = hlo::attr::string(frames[i].function) + "(" +
                             hlo::attr::string(frames[i].file) + ":" +
                             std::to_string(frames[i].line) + ":0)";
    if (i + 1 == frames.size()) {
      lines += line;
    } else {
      lines += "callsite(" + line + " at ";
      close += ")";
    }
  }
  return "loc(" + hlo::attr::string(frames[0].function + "/" + op) + "(" + lines + close + "))";
}

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

// Turns calls into operations. Expansions of decomposed operators nest.
class Lowerer {
 public:
  Lowerer(hlo::Builder& builder, const ops::Target& target) : b_(builder), target_(target) {}

  using Results = std::unordered_map<const Node*, hlo::Values>;

  // The packed numbers of the program, cut one by one as calls ask for them.
  struct NumberSource {
    hlo::Value floats, ints;
    int64_t next_float = 0, next_int = 0;
  };

  void lower_call(const Node& node, Results& results, NumberSource* source) {
    const Signature& s = node.signature();
    // What an operator expands to belongs to the operator.
    const bool located = with_locations_ && source != nullptr && node.source();
    if (located) b_.set_location(location_text(s.op->name, node.source().frames()));
    hlo::Values numbers;
    for (size_t i = 0; i < s.numbers.size(); ++i) {
      const bool is_constant =
          source == nullptr || constant_numbers().contains(s, node.numbers(), i);
      numbers.push_back(is_constant ? constant_number(node.numbers()[i], s.numbers[i])
                                    : runtime_number(*source, s.numbers[i]));
    }
    size_t next = 0;
    const auto tensor = [&]() -> const hlo::Value& {
      const Value& v = node.operands()[next++];
      return results.at(v.node.get()).at(v.index);
    };
    results[&node] = lower_signature(s, operands_of(s, numbers, tensor), numbers);
    if (located) b_.set_location("");
  }

  // A call by itself, of these tensors and of numbers that are all zero.
  void lower_alone(const Signature& s, const hlo::Values& tensors) {
    hlo::Values numbers;
    for (const NumberKind kind : s.numbers) numbers.push_back(constant_number({}, kind));
    size_t next = 0;
    const auto tensor = [&]() -> const hlo::Value& { return tensors[next++]; };
    lower_signature(s, operands_of(s, numbers, tensor), numbers);
  }

 private:
  // `tensor` gives those operands, one by one, that are not numbers.
  template <class F>
  hlo::Values operands_of(const Signature& s, const hlo::Values& numbers, F&& tensor) const {
    hlo::Values operands;
    for (const lazy::OperandInfo& info : s.operands) {
      operands.push_back(info.number < 0
                             ? tensor()
                             : hlo::convert(numbers[info.number], number_dtype(*info.geometry)));
    }
    return operands;
  }

  hlo::Values lower_signature(const Signature& s, const hlo::Values& operands,
                              const hlo::Values& numbers) {
    check_dtypes(s);
    if (gives_nothing(s)) {
      hlo::Values results;
      for (const Geometry* output : s.outputs) {
        results.push_back(hlo::zero(b_, ops::to_hlo(*output)));
      }
      return results;
    }
    if (s.expansion != nullptr) return lower_expansion(*s.expansion, operands);
    ops::RuleFunction rule = s.op->rule == nullptr ? nullptr : s.op->rule->on(target_);
    if (rule == nullptr && ops::has_host_kernel(s.op->handle, target_)) {
      rule = [](ops::Lowering& l) { return ops::on_host(l); };
    }
    TXLA_CHECK_KIND(util::ErrorKind::NotImplemented, rule != nullptr, s.op->name,
                    ": expected a lowering for platform ", target_.platform,
                    ", found none. Please report this operator.");
    ops::Lowering lowering(b_, target_, s, operands, numbers);
    hlo::Values results = rule(lowering);
    if (ops::has_narrowed()) narrow(results, s);
    TXLA_CHECK(results.size() == s.outputs.size(), s.op->name, ": its lowering gave ",
               results.size(), " results, expected ", s.outputs.size(), ".");
    for (size_t i = 0; i < results.size(); ++i) {
      if (s.outputs[i] == nullptr) continue;
      TXLA_CHECK(results[i].type() == ops::to_hlo(*s.outputs[i]), s.op->name,
                 ": its lowering gave ", results[i].type().str(), " for result ", i, ", expected ",
                 ops::to_hlo(*s.outputs[i]).str(), ".");
    }
    return results;
  }

  // Whether no result has an element: PyTorch then takes dtypes that it does not compute, such as
  // softmax of integers.
  static bool gives_nothing(const Signature& s) {
    return !s.outputs.empty() && std::ranges::all_of(s.outputs, [](const Geometry* output) {
      return output != nullptr && output->numel == 0;
    });
  }

  // A compiler that lacks a dtype may end the process. Numbers come in a dtype that it has.
  void check_dtypes(const Signature& s) const {
    const auto check = [&](const Geometry* g) {
      if (g != nullptr) target_.check_dtype(s.op->name, ops::device_dtype(g->dtype));
    };
    for (const lazy::OperandInfo& info : s.operands) {
      if (info.number < 0) check(info.geometry);
    }
    for (const Geometry* output : s.outputs) check(output);
  }

  // Rules give some results in a dtype that PyTorch fixes.
  static void narrow(hlo::Values& results, const Signature& s) {
    for (size_t i = 0; i < std::min(results.size(), s.outputs.size()); ++i) {
      if (s.outputs[i] == nullptr) continue;
      results[i] = hlo::convert(results[i], ops::to_hlo(*s.outputs[i]).dtype);
    }
  }

  hlo::Values lower_expansion(const lazy::Expansion& expansion, const hlo::Values& operands) {
    Results results;
    for (size_t i = 0; i < expansion.placeholders.size(); ++i) {
      results[expansion.placeholders[i].node.get()] = {operands[i]};
    }
    for (const auto& node : expansion.calls) lower_call(*node, results, nullptr);
    hlo::Values values;
    for (const Value& v : expansion.results) {
      values.push_back(v ? results.at(v.node.get()).at(v.index) : hlo::Value());
    }
    return values;
  }

  static hlo::Value element(const hlo::Value& packed, int64_t i) {
    return hlo::reshape(hlo::slice_dim(packed, 0, i, i + 1), {});
  }

  // Of complex numbers.
  hlo::DType part_dtype() const {
    return target_.has_dtype(at::kComplexDouble) ? hlo::DType::F64 : hlo::DType::F32;
  }
  hlo::DType number_dtype(const Geometry& geometry) const {
    const hlo::DType dtype = ops::to_hlo(geometry.dtype);
    return dtype == hlo::DType::C128 ? hlo::complex_of(part_dtype()) : dtype;
  }
  hlo::Value complex_number(const hlo::Value& real, const hlo::Value& imag) const {
    return hlo::complex(hlo::convert(real, part_dtype()), hlo::convert(imag, part_dtype()));
  }

  hlo::Value runtime_number(NumberSource& source, NumberKind kind) {
    switch (kind) {
      case NumberKind::Float:
        return element(source.floats, source.next_float++);
      case NumberKind::Complex: {
        source.next_float += 2;
        return complex_number(element(source.floats, source.next_float - 2),
                              element(source.floats, source.next_float - 1));
      }
      case NumberKind::Int:
        return element(source.ints, source.next_int++);
      case NumberKind::UInt:
        return hlo::convert(element(source.ints, source.next_int++), hlo::DType::U64);
      case NumberKind::Bool:
        return hlo::convert(element(source.ints, source.next_int++), hlo::DType::Pred);
    }
    return {};
  }

  hlo::Value constant_number(const lazy::Number& n, NumberKind kind) {
    switch (kind) {
      case NumberKind::Float:
        return hlo::scalar(b_, n.real, hlo::DType::F64);
      case NumberKind::Complex:
        return complex_number(hlo::scalar(b_, n.real, hlo::DType::F64),
                              hlo::scalar(b_, n.imag, hlo::DType::F64));
      case NumberKind::Int:
        return hlo::scalar_int(b_, n.integer, hlo::DType::S64);
      case NumberKind::UInt:
        return hlo::convert(hlo::scalar_int(b_, n.integer, hlo::DType::S64), hlo::DType::U64);
      case NumberKind::Bool:
        return hlo::scalar_int(b_, n.integer, hlo::DType::Pred);
    }
    return {};
  }

  hlo::Builder& b_;
  const ops::Target& target_;
  const bool with_locations_ = util::flag::XLA_HLO_DEBUG();
};

}  // namespace

bool try_lowering(const Signature& signature, const ops::Target& target) {
  hlo::Builder b = builder_for(target);
  std::vector<hlo::Type> types;
  for (const lazy::OperandInfo& info : signature.operands) {
    if (info.number < 0) types.push_back(ops::to_hlo(*info.geometry));
  }
  const hlo::Values tensors = b.begin_function("main", types);
  Lowerer(b, target).lower_alone(signature, tensors);
  b.end_function({});
  return b.finish().find(ops::kHostKernelTarget) != std::string::npos;
}

namespace {

std::string program_of(const Graph& graph, const ops::Target& target, bool reuses_buffers) {
  hlo::Builder b = builder_for(target);
  std::vector<hlo::Type> types;
  std::vector<hlo::Attributes> attributes;
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const Geometry& g = graph.inputs[i]->output(0);
    types.push_back({ops::to_hlo(held_dtype(*graph.inputs[i]->data().array)), g.sizes});
    attributes.emplace_back();
    if (reuses_buffers && graph.aliases[i] >= 0) {
      attributes.back().push_back({"tf.aliasing_output", hlo::attr::i32(graph.aliases[i])});
    }
  }
  const auto floats = static_cast<int64_t>(graph.numbers.floats.size());
  const auto ints = static_cast<int64_t>(graph.numbers.ints.size());
  if (floats != 0) types.push_back({hlo::DType::F64, {floats}});
  if (ints != 0) types.push_back({hlo::DType::S64, {ints}});

  const hlo::Values arguments = b.begin_function("main", types, attributes);
  Lowerer lowerer(b, target);
  Lowerer::Results results;
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const Node* input = graph.inputs[i];
    results[input] = {hlo::convert(arguments[i], ops::to_hlo(input->output(0)).dtype)};
  }
  Lowerer::NumberSource numbers;
  size_t next = graph.inputs.size();
  if (floats != 0) numbers.floats = arguments[next++];
  if (ints != 0) numbers.ints = arguments[next++];

  for (const Node* node : graph.calls) {
    b.set_call(node->ordinal);
    lowerer.lower_call(*node, results, &numbers);
  }
  hlo::Values roots;
  for (const Value& root : graph.roots) roots.push_back(results.at(root.node.get()).at(root.index));
  b.end_function(roots);
  return b.finish();
}

}  // namespace

Lowered lower(const Graph& graph, const ops::Target& target) {
  Lowered lowered;
  lowered.reuses_buffers = std::any_of(graph.aliases.begin(), graph.aliases.end(),
                                       [](int32_t root) { return root >= 0; });
  lowered.text = program_of(graph, target, lowered.reuses_buffers);
  lowered.can_fail = ops::can_fail(lowered.text);
  if (lowered.can_fail && lowered.reuses_buffers) {
    lowered.reuses_buffers = false;  // a run that fails must leave its inputs as they are
    lowered.text = program_of(graph, target, false);
  }
  return lowered;
}

}  // namespace torch_xla::executor
