// Lowerer, which turns the calls of functions into operations.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>

#include <c10/util/FunctionRef.h>

#include "executor/program/interface.h"
#include "executor/program/manual_run.h"
#include "executor/program/marked_calls.h"
#include "executor/program/numbers.h"
#include "executor/program/stretch.h"
#include "hlo/partition.h"
#include "lazy/operator.h"
#include "ops/collectives.h"
#include "ops/host/host_kernel.h"
#include "ops/host/in_memory.h"
#include "ops/host/on_host.h"
#include "ops/lowering.h"
#include "ops/manual_sharding.h"
#include "util/error.h"
#include "util/flags.h"

namespace torch_xla::executor {

// Turns calls into operations. Expansions of decomposed operators nest.
class Lowerer {
  using Geometry = lazy::Geometry;
  using Node = lazy::Node;
  using NumberKind = lazy::NumberKind;
  using Signature = lazy::Signature;
  using Value = lazy::Value;

 public:
  Lowerer(hlo::Builder& builder, const ops::Target& target,
          bool with_locations = util::flag::XLA_HLO_DEBUG())
      : b_(builder), target_(target), with_locations_(with_locations) {}

  // Packed numbers, cut one by one as calls ask for them.
  struct Packed {
    hlo::Value array;
    hlo::Values cut;  // where they have been cut already
    int64_t next = 0;

    hlo::Value take() {
      const int64_t i = next++;
      return cut.empty() ? hlo::reshape(hlo::slice_dim(array, 0, i, i + 1), {}) : cut[i];
    }
  };
  struct NumberSource {
    Packed floats, ints;
    bool all_constant = false;  // numbers and seeds are what the calls were recorded with
    std::unordered_map<const Node*, hlo::Values> seeds = {};  // but for these, of each call
  };

  // From now on the results of the program's calls are split so.
  void set_splits(const ValueSplits* splits) { splits_ = splits; }
  // From now on lines after the calls name their results.
  void name_results() { names_results_ = true; }
  // Says of a parameter that its argument is an array with an entry for every device.
  void take_manual(const Node* parameter) { manual_.add(parameter); }

  // The results of a function of these arguments. Its numbers come from `source`; without one they
  // are constants but for the seeds, which are given.
  hlo::Values lower(const lazy::Function& function, const hlo::Values& arguments,
                    NumberSource* source, std::span<const hlo::Value> seeds = {}) {
    Results results;
    for (size_t i = 0; i < function.parameters.size(); ++i) {
      results[function.parameters[i]] = {arguments[i]};
    }
    if (source != nullptr && source->all_constant) {
      lower_marked(MarkedCalls(function), results, *source);
      expect_no_manual_results(function, manual_);
    } else {
      lower_calls(function.calls, results, source, seeds, function.results);
    }
    hlo::Values values;
    for (const Value& v : function.results) {
      values.push_back(v ? results.at(v.node.get()).at(v.index) : hlo::Value());
    }
    return values;
  }

  hlo::Values lower(const Stretch& stretch, const hlo::Values& arguments, NumberSource* source) {
    Results results;
    for (size_t i = 0; i < stretch.inputs.size(); ++i) {
      value_of(results, stretch.inputs[i].node, stretch.inputs[i].index) = arguments[i];
    }
    for (const Pack& pack : stretch.packs) lower_pack(pack, results);
    lower_calls(stretch.calls, results, source, {}, {});
    hlo::Values values;
    for (const Result& r : stretch.outputs) values.push_back(results.at(r.node).at(r.index));
    return values;
  }

  // What the rule of a call gives, whatever the signature says of it.
  hlo::Values apply_rule(const Signature& s, const hlo::Values& operands,
                         const hlo::Values& numbers) {
    ops::RuleFunction rule = s.op->rule == nullptr ? nullptr : s.op->rule->on(target_);
    if (rule == nullptr && ops::has_host_kernel(s.op->handle, target_)) {
      rule = [](ops::Lowering& l) { return ops::on_host(l); };
    }
    if (rule == nullptr) fail_without_rule(s);
    ops::Lowering lowering(b_, target_, s, operands, numbers, lower_region_);
    return rule(lowering);
  }

  // A call by itself, of these tensors and of numbers that are all zero. A boundary of manual code
  // is one in the programs of a mesh alone.
  void lower_alone(const Signature& s, const hlo::Values& tensors) {
    if (ops::boundary_of(s) != ops::Boundary::None || ops::is_collective(s)) return;
    hlo::Values numbers;
    for (const NumberKind kind : s.numbers) numbers.push_back(constant_number({}, kind));
    size_t next = 0;
    const auto tensor = [&]() -> const hlo::Value& { return tensors[next++]; };
    lower_signature(s, operands_of(s, numbers, tensor), numbers);
  }

 private:
  // The operator and its scope, then the frames that called it, in the form that XLA makes stack
  // frames of: loc("Net.forward/aten::mm"(callsite("Net.forward"("net.py":3:0) at ...))).
  static std::string location_text(const std::string& op, const lazy::Source& source) {
    const lazy::SourceFrames frames = source.frames();
    if (frames.empty()) return "loc(" + hlo::attr::string(op) + ")";
    const std::string scope = lazy::scope_name(source.scope);
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
    const std::string& name = scope.empty() ? frames[0].function : scope;
    return "loc(" + hlo::attr::string(name + "/" + op) + "(" + lines + close + "))";
  }
  // In a stack of residual layers each reader would compute anew all that has been added so far,
  // and the compiler's time would grow with the square of the layers: 24 small transformer layers
  // and their gradients took 11.7 s to compile, and take 2.2.
  void end_fusions(hlo::Values& values) const {
    constexpr int64_t kMost = 32;
    for (hlo::Value& value : values) {
      if (value && b_.recomputed(value) > kMost) value = ops::in_memory({value})[0];
    }
  }

  using Results = std::unordered_map<const Node*, hlo::Values>;

  // Makes room for it.
  static hlo::Value& value_of(Results& of, const Node* node, uint32_t index) {
    hlo::Values& values = of[node];
    values.resize(std::max(values.size(), index + size_t{1}));
    return values[index];
  }

  static void lower_pack(const Pack& pack, Results& results) {
    hlo::Values rows;
    if (!results.contains(pack.array)) {
      for (const Result& r : pack.rows) {
        const hlo::Value& row = results.at(r.node).at(r.index);
        hlo::Dims dims = row.dims();
        dims.insert(dims.begin(), 1);
        rows.push_back(hlo::reshape(row, dims));
      }
      results[pack.array] = {hlo::concatenate(rows, 0)};
      return;
    }
    const hlo::Value array = results.at(pack.array)[0];
    const hlo::Dims dims(array.dims().begin() + 1, array.dims().end());
    for (size_t i = 0; i < pack.rows.size(); ++i) {
      const auto row = static_cast<int64_t>(i);
      value_of(results, pack.rows[i].node, pack.rows[i].index) =
          hlo::reshape(hlo::slice_dim(array, 0, row, row + 1), dims);
    }
  }

  // `read` are the results of the function of these calls.
  void lower_calls(std::span<const Node* const> calls, Results& results, NumberSource* source,
                   std::span<const hlo::Value> seeds, std::span<const Value> read) {
    std::unordered_map<const Node*, int> readers;
    if (target_.prefers_host_kernels()) {
      for (const Node* call : calls) {
        for (const Value& operand : call->operands()) ++readers[operand.node.get()];
      }
    }
    std::optional<LastReads> last_reads;
    for (size_t i = 0; i < calls.size(); ++i) {
      // What an operator expands to belongs to the operator.
      if (source != nullptr) b_.set_call(calls[i]->ordinal);
      if (is_manual_call(*calls[i], manual_)) {
        const ManualRun run(calls.subspan(i), manual_);
        if (!last_reads) last_reads.emplace(calls, read);
        i += run.calls.size() - 1;
        lower_manual(run, results, source, seeds,
                     [&](const Node* call) { return last_reads->is_read_after(call, i); });
        continue;
      }
      hlo::Values& made = lower_call(*calls[i], results, source, seeds);
      if (readers[calls[i]] > 1) end_fusions(made);
      if (source == nullptr) continue;
      if (splits_ != nullptr) split(made, calls[i]->ordinal);
      if (names_results_) name(made, calls[i]->ordinal);
    }
  }

  void split(hlo::Values& values, uint32_t ordinal) const {
    for (uint32_t i = 0; i < values.size(); ++i) {
      const auto s = splits_->find({ordinal, i});
      if (s != splits_->end()) {
        values[i] = hlo::constrained(values[i], *s->second->in_mesh(b_.mesh()));
      }
    }
  }

  void name(const hlo::Values& values, uint32_t ordinal) const {
    hlo::Values made;
    for (const hlo::Value& value : values) {
      if (value) made.push_back(value);
    }
    const hlo::Attribute call = {"call", hlo::attr::i64(ordinal)};
    if (made.size() == values.size()) b_.op("torch_xla.results", made, {}, {call});
  }

  void lower_marked(const MarkedCalls& marked, Results& results, NumberSource& source) {
    std::span<const hlo::Value> no_seeds;
    for (const MarkedCalls::Step& step : marked.steps()) {
      if (step.composite != nullptr) {
        lower_composite(*step.composite, results, source);
        continue;
      }
      call_ = step.call;
      place_ = marked.place_of(*step.call);
      hlo::Values& made = lower_call(*step.call, results, &source, no_seeds);
      if (splits_ != nullptr) split(made, step.call->ordinal);
    }
    place_.clear();
  }

  // As a function of its own, which a compiler may replace by what it has under the name.
  void lower_composite(const Composite& composite, Results& results, NumberSource& source) {
    for (const Node* call : composite.calls) {
      TXLA_CHECK(!source.seeds.contains(call), call->signature().op->name,
                 ": expected no random numbers within the composite ", composite.name,
                 " of a program whose random state advances. Leave out its marks.");
    }
    hlo::Values given;
    std::vector<hlo::Type> types, result_types;
    for (const Composite::Input& input : composite.inputs) {
      TXLA_CHECK_KIND(util::ErrorKind::NotImplemented, !manual_.contains(input.node, input.index),
                      "composite ", composite.name,
                      ": expected inputs that are not manual. Leave out its marks.");
      given.push_back(value_of(results, input.node, input.index));
      types.push_back(given.back().type());
    }
    const int64_t before = bodies_[composite.name]++;
    std::string function = composite.name + ".impl";
    if (before > 0) function += "_" + std::to_string(before - 1);
    b_.private_function(function, types, [&](std::span<const hlo::Value> arguments) {
      Results inner;
      for (size_t i = 0; i < arguments.size(); ++i) {
        value_of(inner, composite.inputs[i].node, composite.inputs[i].index) = arguments[i];
      }
      std::span<const hlo::Value> no_seeds;
      for (const Node* call : composite.calls) {
        call_ = call;
        lower_call(*call, inner, &source, no_seeds);
      }
      hlo::Values values;
      for (const Node* output : composite.outputs) {
        const Value& value = output->operands()[0];
        values.push_back(value_of(inner, value.node.get(), value.index));
        result_types.push_back(values.back().type());
      }
      return values;
    });
    const hlo::Values values = b_.op("stablehlo.composite", given, result_types,
                                     {{"name", hlo::attr::string(composite.name)},
                                      {"composite_attributes", composite.attributes},
                                      {"decomposition", hlo::attr::symbol(function)}});
    for (size_t i = 0; i < values.size(); ++i) results[composite.outputs[i]] = {values[i]};
  }

  // What is built in its life has the place of a call.
  class At {
   public:
    At(Lowerer& lowerer, const Node& node, bool has_source) : b_(lowerer.b_) {
      const bool located = lowerer.with_locations_ && has_source && node.source();
      const std::string& place = lowerer.place_;
      if (located) {
        b_.set_location(location_text(node.signature().op->name, node.source()));
      }
      if (!place.empty()) b_.set_location("loc(" + hlo::attr::string(place) + ")");
      is_set_ = located || !place.empty();
    }
    ~At() {
      if (is_set_) b_.set_location("");
    }
    At(const At&) = delete;
    At& operator=(const At&) = delete;

   private:
    hlo::Builder& b_;
    bool is_set_;
  };

  // Takes the seeds that it uses off `seeds`.
  hlo::Values& lower_call(const Node& node, Results& results, NumberSource* source,
                          std::span<const hlo::Value>& seeds) {
    if (is_manual_call(node, manual_)) {
      const Node* const call = &node;
      lower_manual({std::span(&call, 1), manual_}, results, source, seeds,
                   [](auto) { return true; });
      return results.at(&node);
    }
    const At here(*this, node, source != nullptr);
    const hlo::Values numbers = numbers_of(node, source, seeds);
    return results[&node] = lower_on(node, results, numbers);
  }

  // Of the values among `results`.
  hlo::Values lower_on(const Node& node, const Results& results, const hlo::Values& numbers) {
    const Signature& s = node.signature();
    size_t next = 0;
    const bool is_constant = ops::is_constant(*s.op);
    const hlo::Value none;
    const auto tensor = [&]() -> const hlo::Value& {
      if (is_constant) return none;
      const Value& v = node.operands()[next++];
      return results.at(v.node.get()).at(v.index);
    };
    const hlo::Values operands = operands_of(s, numbers, tensor);
    if (manual_.mixes(node)) return lower_mixed(node, operands, numbers);
    if (ops::boundary_of(s) == ops::Boundary::None) return lower_signature(s, operands, numbers);
    if (b_.mesh() != nullptr) manual_.add_results_of(node);
    return apply_rule(s, operands, numbers);
  }

  // What the call expands to, some of which each device computes by itself.
  hlo::Values lower_mixed(const Node& node, const hlo::Values& operands,
                          const hlo::Values& numbers) {
    const Signature& s = node.signature();
    ops::ManualValues within = manual_.parameters_of_expansion(node);
    if (b_.mesh() != nullptr) manual_.add_results_of(node);
    std::swap(manual_, within);
    hlo::Values made = lower(*s.expansion, operands, nullptr, std::span(numbers).last(s.num_seeds));
    std::swap(manual_, within);
    return made;
  }

  hlo::Values numbers_of(const Node& node, NumberSource* source,
                         std::span<const hlo::Value>& seeds) {
    const Signature& s = node.signature();
    hlo::Values numbers;
    if (source != nullptr && s.num_seeds != 0) {
      if (const auto drawn = source->seeds.find(&node); drawn != source->seeds.end()) {
        seeds = drawn->second;
      }
    }
    for (size_t i = 0; i < s.numbers.size(); ++i) {
      if (!seeds.empty() && s.is_seed(i)) {
        numbers.push_back(seeds.front());
        seeds = seeds.subspan(1);
        continue;
      }
      const bool is_constant = source == nullptr || source->all_constant ||
                               constant_numbers().contains(s, node.numbers(), i);
      numbers.push_back(is_constant ? constant_number(node.numbers()[i], s.numbers[i])
                                    : runtime_number(*source, s.numbers[i]));
    }
    return numbers;
  }

  // One computation of all calls of the run, whose numbers are among what it is given. Of its
  // results those stay that are read later.
  void lower_manual(const ManualRun& run, Results& results, NumberSource* source,
                    std::span<const hlo::Value>& seeds,
                    c10::function_ref<bool(const Node*)> is_read_later) {
    hlo::Values given;
    for (const Result& input : run.inputs) {
      given.push_back(results.at(input.node).at(input.index));
    }
    std::vector<std::ptrdiff_t> first_number;
    for (const Node* call : run.calls) {
      const At here(*this, *call, source != nullptr);
      const hlo::Values numbers = numbers_of(*call, source, seeds);
      first_number.push_back(std::ssize(given));
      given.insert(given.end(), numbers.begin(), numbers.end());
    }
    std::vector<bool> is_manual = run.is_manual;
    is_manual.resize(given.size());
    std::vector<std::pair<const Node*, std::ptrdiff_t>> kept;  // with the number of its results
    const auto body = [&](const hlo::Values& values) {
      Results inner;
      hlo::Values all;
      for (size_t i = 0; i < run.inputs.size(); ++i) {
        value_of(inner, run.inputs[i].node, run.inputs[i].index) = values[i];
      }
      for (size_t i = 0; i < run.calls.size(); ++i) {
        const Node& call = *run.calls[i];
        if (source != nullptr) b_.set_call(call.ordinal);
        const At here(*this, call, source != nullptr);
        const auto first = values.begin() + first_number[i];
        const hlo::Values numbers(first, first + std::ssize(call.signature().numbers));
        const hlo::Values& made = inner[&call] = lower_on(call, inner, numbers);
        if (!is_read_later(&call)) continue;
        kept.emplace_back(&call, std::ssize(made));
        all.insert(all.end(), made.begin(), made.end());
      }
      return all;
    };
    const hlo::Values made = ops::on_each_device(b_, given, is_manual, body);
    auto next = made.begin();
    for (const auto& [call, count] : kept) {
      results[call].assign(next, next + count);
      next += count;
    }
  }

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
    if (s.expansion != nullptr) {
      return lower(*s.expansion, operands, nullptr, std::span(numbers).last(s.num_seeds));
    }
    hlo::Values results = apply_rule(s, operands, numbers);
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

  [[noreturn]] void fail_without_rule(const Signature& s) const {
    if (target_.platform == ops::kPortable) {
      const std::string line = call_ == nullptr ? "" : call_->source().str();
      util::fail(util::ErrorKind::NotImplemented, s.op->name,
                 ": expected an operator that every compiler can compute, got one that is only a "
                 "kernel of PyTorch's on the CPU.",
                 line.empty() ? "" : " Called at " + line + ".",
                 " Leave it out of the program, or decompose it.");
    }
    util::fail(util::ErrorKind::NotImplemented, s.op->name, ": expected a lowering for platform ",
               target_.platform, ", found none. Please report this operator.");
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
        return source.floats.take();
      case NumberKind::Complex: {
        const hlo::Value real = source.floats.take();
        return complex_number(real, source.floats.take());
      }
      case NumberKind::Int:
        return source.ints.take();
      case NumberKind::UInt:
        return hlo::convert(source.ints.take(), hlo::DType::U64);
      case NumberKind::Bool:
        return hlo::convert(source.ints.take(), hlo::DType::Pred);
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
  const bool with_locations_;
  const ValueSplits* splits_ = nullptr;
  bool names_results_ = false;
  const Node* call_ = nullptr;                       // that is being lowered for every compiler
  std::string place_;                                // that the program gives it
  std::unordered_map<std::string, int64_t> bodies_;  // of composites, by their names
  ops::ManualValues manual_;                         // of the function that is being lowered
  const ops::Lowering::LowerFunction lower_region_ = [this](const lazy::KeptFunction& function,
                                                            const hlo::Values& arguments,
                                                            std::span<const hlo::Value> seeds) {
    ops::ManualValues outer = std::exchange(manual_, {});
    hlo::Values values = lower(function, arguments, nullptr, seeds);
    expect_no_manual_results(function, manual_);
    manual_ = std::move(outer);
    return values;
  };
};

}  // namespace torch_xla::executor
