#include "dispatch/record/control_flow.h"

#include <optional>

#include <torch/library.h>

#include "dispatch/calls/plan.h"
#include "dispatch/record/context.h"
#include "dispatch/record/function_trace.h"
#include "lazy/signature.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

using lazy::Geometry;
using lazy::Value;

TORCH_LIBRARY_FRAGMENT(torch_xla, m) {
  m.def(
      "while_loop(Tensor[] carried, Tensor[] by_condition, Tensor[] by_body, str functions) -> "
      "Tensor[]");
  m.def("cond(Tensor predicate, Tensor[] by_true, Tensor[] by_false, str functions) -> Tensor[]");
  m.def(
      "scan(Tensor[] init, Tensor[] xs, Tensor[] captured, bool reverse, str functions) -> "
      "Tensor[]");
}

const lazy::Geometry* contiguous(const Geometry& g) {
  return lazy::intern_contiguous(g.dtype, g.sizes);
}

}  // namespace

std::vector<Value> values_of(const char* name, const Tensors& tensors, std::optional<int>& device) {
  std::vector<Value> values;
  for (const at::Tensor& t : tensors) {
    const at::Tensor plain = t.resolve_conj().resolve_neg();
    const lazy::TensorImpl* impl = lazy::as_lazy(plain);
    TXLA_CHECK(impl != nullptr, name, ": expected xla tensors, got one on ", t.device(),
               ". Move it with .to('xla') first.");
    if (!device) device = impl->device_index();
    TXLA_CHECK(impl->device_index() == *device, name,
               ": expected tensors of one device, got xla:", *device,
               " and xla:", impl->device_index(), ".");
    values.push_back(impl->read());
  }
  return values;
}

const Geometry* result_geometry(const at::Tensor& tensor) {
  const Geometry* g = lazy::as_lazy(tensor)->geometry();
  return g->layout.non_overlapping_and_dense ? g : contiguous(*g);
}

namespace {

// A body as a function of parameters of these geometries.
struct Recorded : FunctionTrace::Recorded {
  std::vector<const Geometry*> results;
};

Recorded record(const char* name, int device, const std::vector<const Geometry*>& parameters,
                Body body) {
  FunctionTrace trace(device);
  Tensors stand_ins;
  for (const Geometry* g : parameters) stand_ins.push_back(trace.stand_in(g));
  const Tensors results = body(stand_ins);
  trace.check_unwritten(name);
  std::optional<int> expected = device;
  for (Value& value : values_of(name, results, expected)) trace.result(std::move(value));
  Recorded recorded{trace.finish(), {}};
  for (const at::Tensor& t : results) recorded.results.push_back(result_geometry(t));
  return recorded;
}

// The call of a control flow operator.
class Call {
 public:
  Call(const char* name, int device)
      : op_(find_operator(lazy::operator_name(name))), builder_(*op_), device_(device) {}

  void tensor(const Value& value) {
    builder_.tensor(&value.geometry());
    operands_.push_back(value);
  }
  void list(const std::vector<Value>& values) {
    builder_.begin_list(values.size());
    for (const Value& value : values) tensor(value);
  }

  void flag(bool value) { builder_.fixed(c10::IValue(value)); }

  // Records the call; all other arguments have been given.
  Tensors make(const std::vector<const Recorded*>& functions,
               const std::vector<const Geometry*>& geometries) {
    std::string key;
    lazy::Numbers seeds;
    for (const Recorded* f : functions) {
      key += (key.empty() ? "" : " ") + f->function->hash().hex();
      for (const lazy::Number& seed : f->draws.draw(device_)) seeds.push_back(seed);
    }
    builder_.fixed(c10::IValue(std::move(key)));
    for (size_t i = 0; i < seeds.size(); ++i) builder_.seed();
    for (const Geometry* g : geometries) builder_.output(contiguous(*g));
    c10::intrusive_ptr<lazy::Signature> signature = builder_.build();
    for (const Recorded* f : functions) signature->regions.push_back(f->function);
    const auto node = lazy::make_node(lazy::intern(std::move(signature)), std::move(operands_),
                                      std::move(seeds), device_);
    Tensors results;
    for (uint32_t i = 0; i < geometries.size(); ++i) {
      results.push_back(lazy::make_tensor({node, i}, geometries[i], device_));
    }
    return results;
  }

 private:
  std::shared_ptr<const lazy::Operator> op_;
  lazy::SignatureBuilder builder_;
  int device_;
  lazy::Operands operands_;
};

std::vector<const Geometry*> geometries_of(const Tensors& tensors) {
  std::vector<const Geometry*> all;
  for (const at::Tensor& t : tensors) all.push_back(result_geometry(t));
  return all;
}

std::string describe(const Geometry& g) {
  return c10::str(c10::toString(g.dtype), c10::IntArrayRef(g.sizes));
}

bool alike(const Geometry& a, const Geometry& b) {
  return a.dtype == b.dtype && a.sizes == b.sizes;
}

// What a body carries on has the dtypes and sizes of what it was given.
void check_carried(const char* name, const std::vector<const Geometry*>& given,
                   const std::vector<const Geometry*>& next) {
  for (size_t i = 0; i < given.size(); ++i) {
    const Geometry &a = *given[i], &b = *next[i];
    TXLA_CHECK(alike(a, b), name, ": expected the body to keep dtypes and sizes, got ", describe(b),
               " for carried value ", i, ", which is ", describe(a), ".");
  }
}

void check_count(const char* name, const char* what, size_t expected, size_t got) {
  TXLA_CHECK(got == expected, name, ": expected ", expected, " results of the ", what, ", got ",
             got, ".");
}

}  // namespace

Tensors while_loop(Body condition, Body body, const Tensors& carried) {
  constexpr const char* kName = "while_loop";
  TXLA_CHECK(!carried.empty(), kName, ": expected at least one carried tensor, got none.");
  Tensors results;
  std::optional<int> device;
  {
    const lazy::GraphLock lock;
    const std::vector<Value> init = values_of(kName, carried, device);
    const std::vector<const Geometry*> given = geometries_of(carried);
    const Recorded go_on = record(kName, *device, given, condition);
    check_count(kName, "condition", 1, go_on.results.size());
    const Geometry& predicate = *go_on.results[0];
    TXLA_CHECK(predicate.dtype == at::kBool && predicate.sizes.empty(), kName,
               ": expected the condition to give a 0-dim bool, got ", describe(predicate), ".");
    const Recorded next = record(kName, *device, given, body);
    check_count(kName, "body", given.size(), next.results.size());
    check_carried(kName, given, next.results);
    Call call("torch_xla::while_loop", *device);
    call.list(init);
    call.list(go_on.captured);
    call.list(next.captured);
    results = call.make({&go_on, &next}, next.results);
  }
  after_record(*device);
  return results;
}

Tensors cond(const at::Tensor& predicate, Body on_true, Body on_false) {
  constexpr const char* kName = "cond";
  TXLA_CHECK(predicate.dim() == 0 && predicate.scalar_type() == at::kBool, kName,
             ": expected a 0-dim bool, got ", predicate.scalar_type(), predicate.sizes(), ".");
  Tensors results;
  std::optional<int> device;
  {
    const lazy::GraphLock lock;
    const Value chooses = values_of(kName, {predicate}, device)[0];
    const Recorded yes = record(kName, *device, {}, on_true);
    const Recorded no = record(kName, *device, {}, on_false);
    check_count(kName, "second branch", yes.results.size(), no.results.size());
    for (size_t i = 0; i < yes.results.size(); ++i) {
      const Geometry &a = *yes.results[i], &b = *no.results[i];
      TXLA_CHECK(alike(a, b), kName, ": expected equal dtypes and sizes of both branches, got ",
                 describe(a), " and ", describe(b), " for result ", i, ".");
    }
    Call call("torch_xla::cond", *device);
    call.tensor(chooses);
    call.list(yes.captured);
    call.list(no.captured);
    results = call.make({&yes, &no}, yes.results);
  }
  after_record(*device);
  return results;
}

Tensors scan(Body combine, const Tensors& init, const Tensors& xs, bool reverse) {
  constexpr const char* kName = "scan";
  TXLA_CHECK(!xs.empty(), kName, ": expected at least one tensor to scan, got none.");
  for (const at::Tensor& x : xs) {
    TXLA_CHECK(x.dim() > 0 && x.size(0) == xs[0].size(0), kName,
               ": expected tensors of one length to scan, got ", xs[0].sizes(), " and ", x.sizes(),
               ".");
  }
  Tensors results;
  std::optional<int> device;
  {
    const lazy::GraphLock lock;
    const std::vector<Value> carried = values_of(kName, init, device);
    const std::vector<Value> rows = values_of(kName, xs, device);
    std::vector<const Geometry*> given = geometries_of(init);
    for (const Value& x : rows) {
      const Geometry& g = x.geometry();
      given.push_back(lazy::intern_contiguous(g.dtype, c10::IntArrayRef(g.sizes).slice(1)));
    }
    const Recorded step = record(kName, *device, given, combine);
    given.resize(carried.size());
    TXLA_CHECK(step.results.size() >= given.size(), kName, ": expected at least ", given.size(),
               " results of the body, got ", step.results.size(), ".");
    check_carried(kName, given, step.results);
    std::vector<const Geometry*> outputs = step.results;
    for (size_t i = given.size(); i < outputs.size(); ++i) {
      std::vector<int64_t> sizes = {xs[0].size(0)};
      sizes.insert(sizes.end(), outputs[i]->sizes.begin(), outputs[i]->sizes.end());
      outputs[i] = lazy::intern_contiguous(outputs[i]->dtype, sizes);
    }
    Call call("torch_xla::scan", *device);
    call.list(carried);
    call.list(rows);
    call.list(step.captured);
    call.flag(reverse);
    results = call.make({&step}, outputs);
  }
  after_record(*device);
  return results;
}

}  // namespace torch_xla::dispatch
