#include "dispatch/functions/control_flow.h"

#include <optional>

#include <torch/library.h>

#include "dispatch/functions/recording.h"
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

// Records the call of a control flow operator, whose other arguments have been given.
Tensors record_call(FunctionCall& call, const std::vector<const RecordedFunction*>& functions,
                    const Geometries& results, int device) {
  std::vector<std::shared_ptr<const lazy::Function>> regions;
  lazy::Numbers seeds;
  for (const RecordedFunction* f : functions) {
    regions.push_back(f->function);
    for (const lazy::Number& seed : f->draws.draw(device)) seeds.push_back(seed);
  }
  call.regions(std::move(regions));
  return result_tensors(call.record(results, std::move(seeds), device), results, device);
}

std::string describe(const Geometry& g) {
  return c10::str(c10::toString(g.dtype), c10::IntArrayRef(g.sizes));
}

bool alike(const Geometry& a, const Geometry& b) {
  return a.dtype == b.dtype && a.sizes == b.sizes;
}

// Throws unless a body carries on values of the dtypes and sizes that it was given.
void check_carried(const char* name, const Geometries& given, const Geometries& next) {
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
  return recorded([&](std::optional<int>& device) {
    const std::vector<Value> init = values_of(kName, carried, device);
    const Geometries given = result_geometries(carried);
    Geometries decision, next;
    const RecordedFunction go_on = record(kName, *device, given, condition, decision);
    check_count(kName, "condition", 1, decision.size());
    const Geometry& predicate = *decision[0];
    TXLA_CHECK(predicate.dtype == at::kBool && predicate.sizes.empty(), kName,
               ": expected the condition to give a 0-dim bool, got ", describe(predicate), ".");
    const RecordedFunction step = record(kName, *device, given, body, next);
    check_count(kName, "body", given.size(), next.size());
    check_carried(kName, given, next);
    FunctionCall call("torch_xla::while_loop");
    call.list(init);
    call.list(go_on.captured);
    call.list(step.captured);
    return record_call(call, {&go_on, &step}, next, *device);
  });
}

Tensors cond(const at::Tensor& predicate, Body on_true, Body on_false) {
  constexpr const char* kName = "cond";
  TXLA_CHECK(predicate.dim() == 0 && predicate.scalar_type() == at::kBool, kName,
             ": expected a 0-dim bool, got ", predicate.scalar_type(), predicate.sizes(), ".");
  return recorded([&](std::optional<int>& device) {
    const Value chooses = values_of(kName, {predicate}, device)[0];
    Geometries first, second;
    const RecordedFunction yes = record(kName, *device, {}, on_true, first);
    const RecordedFunction no = record(kName, *device, {}, on_false, second);
    check_count(kName, "second branch", first.size(), second.size());
    for (size_t i = 0; i < first.size(); ++i) {
      const Geometry &a = *first[i], &b = *second[i];
      TXLA_CHECK(alike(a, b), kName, ": expected equal dtypes and sizes of both branches, got ",
                 describe(a), " and ", describe(b), " for result ", i, ".");
    }
    FunctionCall call("torch_xla::cond");
    call.operand(chooses);
    call.list(yes.captured);
    call.list(no.captured);
    return record_call(call, {&yes, &no}, first, *device);
  });
}

Tensors scan(Body combine, const Tensors& init, const Tensors& xs, bool reverse) {
  constexpr const char* kName = "scan";
  TXLA_CHECK(!xs.empty(), kName, ": expected at least one tensor to scan, got none.");
  for (const at::Tensor& x : xs) {
    TXLA_CHECK(x.dim() > 0 && x.size(0) == xs[0].size(0), kName,
               ": expected tensors of one length to scan, got ", xs[0].sizes(), " and ", x.sizes(),
               ".");
  }
  return recorded([&](std::optional<int>& device) {
    const std::vector<Value> carried = values_of(kName, init, device);
    const std::vector<Value> rows = values_of(kName, xs, device);
    Geometries given = result_geometries(init);
    for (const Value& x : rows) {
      const Geometry& g = x.geometry();
      given.push_back(lazy::intern_contiguous(g.dtype, c10::IntArrayRef(g.sizes).slice(1)));
    }
    Geometries outputs;
    const RecordedFunction step = record(kName, *device, given, combine, outputs);
    given.resize(carried.size());
    TXLA_CHECK(outputs.size() >= given.size(), kName, ": expected at least ", given.size(),
               " results of the body, got ", outputs.size(), ".");
    check_carried(kName, given, outputs);
    for (size_t i = given.size(); i < outputs.size(); ++i) {
      std::vector<int64_t> sizes = {xs[0].size(0)};
      sizes.insert(sizes.end(), outputs[i]->sizes.begin(), outputs[i]->sizes.end());
      outputs[i] = lazy::intern_contiguous(outputs[i]->dtype, sizes);
    }
    FunctionCall call("torch_xla::scan");
    call.list(carried);
    call.list(rows);
    call.list(step.captured);
    call.fixed(c10::IValue(reverse));
    return record_call(call, {&step}, outputs, *device);
  });
}

}  // namespace torch_xla::dispatch
