#include "executor/program/lowerer.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "cpu/host_kernel.h"
#include "cpu/in_memory.h"
#include "executor/program/numbers.h"
#include "hlo/partition.h"
#include "lazy/operator.h"
#include "ops/collectives.h"
#include "ops/on_host.h"
#include "util/error.h"

namespace torch_xla::executor {

using lazy::NumberKind;
using lazy::Ref;

namespace {

// The operator and its scope, then the frames that called it, in the form that XLA makes stack
// frames of: loc("Net.forward/aten::mm"(callsite("Net.forward"("net.py":3:0) at ...))).
std::string location_text(const std::string& op, const lazy::Source& source) {
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

// Makes room for it.
hlo::Value& value_at(std::vector<hlo::Values>& results, const Ref& r) {
  if (results.size() <= r.index) results.resize(r.index + size_t{1});
  hlo::Values& values = results[r.index];
  values.resize(std::max(values.size(), r.result + size_t{1}));
  return values[r.result];
}

const hlo::Value& value_of(const std::vector<hlo::Values>& results, const Ref& r) {
  return results.at(r.index).at(r.result);
}

void lower_pack(const Pack& pack, std::vector<hlo::Values>& results) {
  hlo::Value& array = value_at(results, {pack.array, 0});
  if (!array) {
    hlo::Values rows;
    for (const Ref& r : pack.rows) {
      const hlo::Value& row = value_of(results, r);
      hlo::Dims dims = row.dims();
      dims.insert(dims.begin(), 1);
      rows.push_back(hlo::reshape(row, dims));
    }
    array = hlo::concatenate(rows, 0);
    return;
  }
  const hlo::Value whole = array;
  const hlo::Dims dims(whole.dims().begin() + 1, whole.dims().end());
  for (size_t i = 0; i < pack.rows.size(); ++i) {
    const auto row = static_cast<int64_t>(i);
    value_at(results, pack.rows[i]) = hlo::reshape(hlo::slice_dim(whole, 0, row, row + 1), dims);
  }
}

// Whether no result has an element: PyTorch then takes dtypes that it does not compute, such as
// softmax of integers.
bool gives_nothing(const lazy::Signature& s) {
  return !s.outputs.empty() && std::ranges::all_of(s.outputs, [](const lazy::Geometry* output) {
    return output != nullptr && output->numel == 0;
  });
}

// Rules give some results in a dtype that PyTorch fixes.
void narrow(hlo::Values& results, const lazy::Signature& s) {
  for (size_t i = 0; i < std::min(results.size(), s.outputs.size()); ++i) {
    if (s.outputs[i] == nullptr) continue;
    results[i] = hlo::convert(results[i], ops::to_hlo(*s.outputs[i]).dtype);
  }
}

}  // namespace

class Lowerer::At {
 public:
  At(Lowerer& lowerer, const Call& call, bool has_source) : b_(lowerer.b_) {
    const bool located = lowerer.with_locations_ && has_source && call.source;
    const std::string& place = lowerer.place_;
    if (located) b_.set_location(location_text(call.signature->op->name, call.source));
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

hlo::Values Lowerer::lower(ops::ManualValues manual, const hlo::Values& arguments,
                           NumberSource* source, std::span<const hlo::Value> seeds) {
  Frame frame(std::move(manual), source, seeds);
  return results_of(frame, arguments);
}

hlo::Values Lowerer::lower(const Function& function, const Stretch& stretch,
                           const hlo::Values& arguments, NumberSource& source) {
  Frame frame(ops::ManualValues(function), &source, {});
  for (size_t i = 0; i < stretch.inputs.size(); ++i) {
    value_at(frame.results, stretch.inputs[i]) = arguments[i];
  }
  for (const Pack& pack : stretch.packs) lower_pack(pack, frame.results);
  lower_calls(frame, stretch.calls);
  hlo::Values values;
  for (const Ref& r : stretch.outputs) values.push_back(value_of(frame.results, r));
  return values;
}

hlo::Values Lowerer::results_of(Frame& frame, const hlo::Values& arguments) {
  const Function& function = frame.function;
  for (size_t i = 0; i < function.parameters.size(); ++i) frame.results[i] = {arguments[i]};
  if (frame.source != nullptr && frame.source->all_constant) {
    lower_marked(frame);
    expect_no_manual_results(frame.manual);
  } else {
    std::vector<uint32_t> all(function.calls.size());
    std::iota(all.begin(), all.end(), uint32_t{0});
    lower_calls(frame, all);
  }
  hlo::Values values;
  for (const Ref& r : function.results) {
    values.push_back(r ? value_of(frame.results, r) : hlo::Value());
  }
  return values;
}

hlo::Values Lowerer::apply_rule(const Signature& s, const hlo::Values& operands,
                                const hlo::Values& numbers) {
  ops::RuleFunction rule = s.op->rule == nullptr ? nullptr : s.op->rule->on(target_);
  if (rule == nullptr && ops::has_host_kernel(s.op->handle, target_)) {
    rule = [](ops::Lowering& l) { return ops::on_host(l); };
  }
  if (rule == nullptr) fail_without_rule(s);
  ops::Lowering lowering(b_, target_, s, operands, numbers, lower_region_);
  return rule(lowering);
}

void Lowerer::lower_alone(const Signature& s, const hlo::Values& tensors) {
  if (ops::boundary_of(s) != ops::Boundary::None || ops::is_collective(*s.op)) return;
  hlo::Values numbers;
  for (const NumberKind kind : s.numbers) numbers.push_back(constant_number({}, kind));
  size_t next = 0;
  const auto tensor = [&]() -> const hlo::Value& { return tensors[next++]; };
  lower_signature(s, operands_of(s, numbers, tensor), numbers);
}

// In a stack of residual layers each reader would compute anew all that has been added so far, and
// the compiler's time would grow with the square of the layers: 24 small transformer layers and
// their gradients took 11.7 s to compile, and take 2.2.
void Lowerer::end_fusions(hlo::Values& values) const {
  constexpr int64_t kMost = 32;
  for (hlo::Value& value : values) {
    if (value && b_.recomputed(value) > kMost) value = cpu::in_memory({value})[0];
  }
}

void Lowerer::lower_calls(Frame& frame, std::span<const uint32_t> calls) {
  const Function& function = frame.function;
  std::vector<int> readers(function.num_values());
  if (target_.prefers_host_kernels()) {
    for (const uint32_t c : calls) {
      for (const Ref& r : function.operands_of(function.calls[c])) ++readers[r.index];
    }
  }
  std::optional<LastReads> last_reads;
  for (size_t i = 0; i < calls.size(); ++i) {
    const Call& call = function.calls[calls[i]];
    // What an operator expands to belongs to the operator.
    if (frame.source != nullptr) b_.set_call(call.ordinal);
    if (is_manual_call(call, frame.manual)) {
      const ManualRun run(calls.subspan(i), frame.manual);
      if (!last_reads) last_reads.emplace(function, calls);
      i += run.calls.size() - 1;
      lower_manual(run, frame, [&](uint32_t c) { return last_reads->is_read_after(c, i); });
      continue;
    }
    hlo::Values& made = lower_call(frame, calls[i]);
    if (readers[function.index_of(calls[i])] > 1) end_fusions(made);
    if (frame.source == nullptr) continue;
    if (splits_ != nullptr) split(made, call.ordinal);
    if (names_results_) name(made, call.ordinal);
  }
}

void Lowerer::split(hlo::Values& values, uint32_t ordinal) const {
  for (uint32_t i = 0; i < values.size(); ++i) {
    const auto s = splits_->find({ordinal, i});
    if (s != splits_->end()) {
      values[i] = hlo::constrained(values[i], *s->second->in_mesh(b_.mesh()));
    }
  }
}

void Lowerer::name(const hlo::Values& values, uint32_t ordinal) const {
  hlo::Values made;
  for (const hlo::Value& value : values) {
    if (value) made.push_back(value);
  }
  const hlo::Attribute call = {"call", hlo::attr::i64(ordinal)};
  if (made.size() == values.size()) b_.op("torch_xla.results", made, {}, {call});
}

void Lowerer::lower_marked(Frame& frame) {
  const MarkedCalls marked(frame.function);
  for (const MarkedCalls::Step& step : marked.steps()) {
    if (step.composite != nullptr) {
      lower_composite(*step.composite, frame);
      continue;
    }
    call_ = &frame.function.calls[step.call];
    place_ = marked.place_of(step.call);
    hlo::Values& made = lower_call(frame, step.call);
    if (splits_ != nullptr) split(made, call_->ordinal);
  }
  place_.clear();
}

// As a function of its own, which a compiler may replace by what it has under the name.
void Lowerer::lower_composite(const Composite& composite, Frame& frame) {
  const Function& function = frame.function;
  const Stretch& part = composite.stretch;
  for (const uint32_t c : part.calls) {
    TXLA_CHECK(frame.source->seeds.empty() || frame.source->seeds[c].empty(),
               function.calls[c].signature->op->name,
               ": expected no random numbers within the composite ", composite.name,
               " of a program whose random state advances. Leave out its marks.");
  }
  hlo::Values given;
  std::vector<hlo::Type> types, result_types;
  for (const Ref& input : part.inputs) {
    TXLA_CHECK_KIND(util::ErrorKind::NotImplemented, !frame.manual.contains(input), "composite ",
                    composite.name, ": expected inputs that are not manual. Leave out its marks.");
    given.push_back(value_of(frame.results, input));
    types.push_back(given.back().type());
  }
  const int64_t before = bodies_[composite.name]++;
  std::string name = composite.name + ".impl";
  if (before > 0) name += "_" + std::to_string(before - 1);
  b_.private_function(name, types, [&](std::span<const hlo::Value> arguments) {
    Frame inner(frame.manual, frame.source, {});
    for (size_t i = 0; i < arguments.size(); ++i) {
      value_at(inner.results, part.inputs[i]) = arguments[i];
    }
    for (const uint32_t c : part.calls) {
      call_ = &function.calls[c];
      lower_call(inner, c);
    }
    hlo::Values values;
    for (const Ref& output : part.outputs) {
      values.push_back(value_of(inner.results, output));
      result_types.push_back(values.back().type());
    }
    return values;
  });
  const hlo::Values values = b_.op("stablehlo.composite", given, result_types,
                                   {{"name", hlo::attr::string(composite.name)},
                                    {"composite_attributes", composite.attributes},
                                    {"decomposition", hlo::attr::symbol(name)}});
  for (size_t i = 0; i < values.size(); ++i) {
    frame.results[function.index_of(composite.marks[i])] = {values[i]};
  }
}

hlo::Values& Lowerer::lower_call(Frame& frame, uint32_t index) {
  const Call& call = frame.function.calls[index];
  hlo::Values& made = frame.results[frame.function.index_of(index)];
  if (is_manual_call(call, frame.manual)) {
    lower_manual({std::span(&index, 1), frame.manual}, frame, [](auto) { return true; });
    return made;
  }
  const At here(*this, call, frame.source != nullptr);
  const hlo::Values numbers = numbers_of(frame, index);
  const hlo::Values operands = operands_of(call, frame.function, frame.results, numbers);
  const Signature& s = *call.signature;
  if (frame.manual.mixes(call)) {
    made = lower_mixed(frame, call, operands, numbers);
  } else if (ops::boundary_of(s) == ops::Boundary::None) {
    made = lower_signature(s, operands, numbers);
  } else {
    if (b_.mesh() != nullptr) frame.manual.add_results_of(index);
    made = apply_rule(s, operands, numbers);
  }
  return made;
}

// What the call expands to, some of which each device computes by itself.
hlo::Values Lowerer::lower_mixed(Frame& frame, const Call& call, const hlo::Values& operands,
                                 const hlo::Values& numbers) {
  ops::ManualValues within = frame.manual.parameters_of_expansion(call);
  if (b_.mesh() != nullptr) {
    frame.manual.add_results_of(static_cast<size_t>(&call - frame.function.calls.data()));
  }
  return lower(std::move(within), operands, nullptr,
               std::span(numbers).last(call.signature->num_seeds));
}

// Takes the seeds that it uses off the frame's.
hlo::Values Lowerer::numbers_of(Frame& frame, uint32_t index) {
  const Call& call = frame.function.calls[index];
  const Signature& s = *call.signature;
  NumberSource* source = frame.source;
  if (source != nullptr && s.num_seeds != 0 && !source->seeds.empty()) {
    frame.seeds = source->seeds[index];
  }
  const std::span<const lazy::Number> recorded = frame.function.numbers_of(call);
  hlo::Values numbers;
  for (size_t i = 0; i < s.numbers.size(); ++i) {
    if (!frame.seeds.empty() && s.is_seed(i)) {
      numbers.push_back(frame.seeds.front());
      frame.seeds = frame.seeds.subspan(1);
      continue;
    }
    const bool is_constant =
        source == nullptr || source->all_constant || constant_numbers().contains(s, recorded, i);
    numbers.push_back(is_constant ? constant_number(recorded[i], s.numbers[i])
                                  : runtime_number(*source, s.numbers[i]));
  }
  return numbers;
}

// One computation of all calls of the run, whose numbers are among what it is given. Of its results
// those stay that are read later.
void Lowerer::lower_manual(const ManualRun& run, Frame& frame,
                           c10::function_ref<bool(uint32_t)> is_read_later) {
  const Function& function = frame.function;
  hlo::Values given;
  for (const Ref& input : run.inputs) given.push_back(value_of(frame.results, input));
  std::vector<std::ptrdiff_t> first_number;
  for (const uint32_t c : run.calls) {
    const At here(*this, function.calls[c], frame.source != nullptr);
    const hlo::Values numbers = numbers_of(frame, c);
    first_number.push_back(std::ssize(given));
    given.insert(given.end(), numbers.begin(), numbers.end());
  }
  std::vector<bool> is_manual = run.is_manual;
  is_manual.resize(given.size());
  std::vector<std::pair<uint32_t, std::ptrdiff_t>> kept;  // with the number of its results
  const auto body = [&](const hlo::Values& values) {
    Results inner(function.num_values());
    hlo::Values all;
    for (size_t i = 0; i < run.inputs.size(); ++i) value_at(inner, run.inputs[i]) = values[i];
    for (size_t i = 0; i < run.calls.size(); ++i) {
      const Call& call = function.calls[run.calls[i]];
      if (frame.source != nullptr) b_.set_call(call.ordinal);
      const At here(*this, call, frame.source != nullptr);
      const auto first = values.begin() + first_number[i];
      const hlo::Values numbers(first, first + std::ssize(call.signature->numbers));
      hlo::Values& made = inner[function.index_of(run.calls[i])];
      made = lower_signature(*call.signature, operands_of(call, function, inner, numbers), numbers);
      if (!is_read_later(run.calls[i])) continue;
      kept.emplace_back(run.calls[i], std::ssize(made));
      all.insert(all.end(), made.begin(), made.end());
    }
    return all;
  };
  const hlo::Values made = ops::on_each_device(b_, given, is_manual, body);
  auto next = made.begin();
  for (const auto& [c, count] : kept) {
    frame.results[function.index_of(c)].assign(next, next + count);
    next += count;
  }
}

// `tensor` gives those operands, one by one, that are not numbers.
template <class F>
hlo::Values Lowerer::operands_of(const Signature& s, const hlo::Values& numbers, F&& tensor) const {
  hlo::Values operands;
  for (const lazy::OperandInfo& info : s.operands) {
    operands.push_back(info.number < 0
                           ? tensor()
                           : hlo::convert(numbers[info.number], number_dtype(*info.geometry)));
  }
  return operands;
}

hlo::Values Lowerer::operands_of(const Call& call, const Function& function, const Results& results,
                                 const hlo::Values& numbers) const {
  const bool is_constant = ops::is_constant(*call.signature->op);
  const hlo::Value none;
  auto next = function.operands_of(call).begin();
  return operands_of(*call.signature, numbers, [&]() -> const hlo::Value& {
    return is_constant ? none : value_of(results, *next++);
  });
}

hlo::Values Lowerer::lower_signature(const Signature& s, const hlo::Values& operands,
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
    return lower(ops::ManualValues(*s.expansion), operands, nullptr,
                 std::span(numbers).last(s.num_seeds));
  }
  hlo::Values results = apply_rule(s, operands, numbers);
  if (ops::has_narrowed()) narrow(results, s);
  TXLA_CHECK(results.size() == s.outputs.size(), s.op->name, ": its lowering gave ", results.size(),
             " results, expected ", s.outputs.size(), ".");
  for (size_t i = 0; i < results.size(); ++i) {
    if (s.outputs[i] == nullptr) continue;
    TXLA_CHECK(results[i].type() == ops::to_hlo(*s.outputs[i]), s.op->name, ": its lowering gave ",
               results[i].type().str(), " for result ", i, ", expected ",
               ops::to_hlo(*s.outputs[i]).str(), ".");
  }
  return results;
}

void Lowerer::fail_without_rule(const Signature& s) const {
  if (target_.platform == ops::kPortable) {
    const std::string line = call_ == nullptr ? "" : call_->source.str();
    util::fail(util::ErrorKind::NotImplemented, s.op->name,
               ": expected an operator that every compiler can compute, got one that is only a "
               "kernel of PyTorch's on the CPU.",
               line.empty() ? "" : " Called at " + line + ".",
               " Leave it out of the program, or decompose it.");
  }
  util::fail(util::ErrorKind::NotImplemented, s.op->name, ": expected a lowering for platform ",
             target_.platform, ", found none. Please report this operator.");
}

// A compiler that lacks a dtype may end the process. Numbers come in a dtype that it has.
void Lowerer::check_dtypes(const Signature& s) const {
  const auto check = [&](const Geometry* g) {
    if (g != nullptr) target_.check_dtype(s.op->name, ops::device_dtype(g->dtype));
  };
  for (const lazy::OperandInfo& info : s.operands) {
    if (info.number < 0) check(info.geometry);
  }
  for (const Geometry* output : s.outputs) check(output);
}

// Of complex numbers.
hlo::DType Lowerer::part_dtype() const {
  return target_.has_dtype(at::kComplexDouble) ? hlo::DType::F64 : hlo::DType::F32;
}

hlo::DType Lowerer::number_dtype(const Geometry& geometry) const {
  const hlo::DType dtype = ops::to_hlo(geometry.dtype);
  return dtype == hlo::DType::C128 ? hlo::complex_of(part_dtype()) : dtype;
}

hlo::Value Lowerer::complex_number(const hlo::Value& real, const hlo::Value& imag) const {
  return hlo::complex(hlo::convert(real, part_dtype()), hlo::convert(imag, part_dtype()));
}

hlo::Value Lowerer::runtime_number(NumberSource& source, NumberKind kind) {
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

hlo::Value Lowerer::constant_number(const lazy::Number& n, NumberKind kind) {
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

}  // namespace torch_xla::executor
