#include "executor/program/manual_run.h"

#include <set>
#include <unordered_set>

#include "ops/sharding_constraint.h"
#include "util/error.h"

namespace torch_xla::executor {

using lazy::Function;
using lazy::Ref;

bool is_manual_call(const Function::Call& call, const ops::ManualValues& manual) {
  return manual.has_among_operands(call) &&
         ops::boundary_of(*call.signature) == ops::Boundary::None && !manual.mixes(call);
}

void expect_no_manual_results(const ops::ManualValues& manual) {
  for (const Ref& r : manual.function().results) {
    if (!r || !manual.contains(r)) continue;
    util::fail(util::ErrorKind::NotImplemented,
               "expected a function without manual values among its results, got one of the sizes ",
               at::IntArrayRef(manual.function().geometry(r).sizes),
               ". Give it back through disable_manual_sharding.");
  }
}

namespace {

// The calls of an expansion may name some, too.
void expect_no_shardings(const lazy::Signature& call) {
  ops::NamedShardings named;
  named.add(call);
  TXLA_CHECK_KIND(util::ErrorKind::Value, named.all.empty(),
                  "mark_sharding or enable_manual_sharding: expected a value of all devices, got a "
                  "manual one, of which each has its own. Use disable_manual_sharding first.");
}

}  // namespace

ManualRun::ManualRun(std::span<const uint32_t> all, ops::ManualValues& manual) {
  const Function& function = manual.function();
  std::set<Ref> seen;
  std::unordered_set<uint32_t> made;
  for (const uint32_t i : all) {
    const Function::Call& call = function.calls[i];
    if (!is_manual_call(call, manual)) break;
    expect_no_shardings(*call.signature);
    for (const Ref& input : function.operands_of(call)) {
      if (made.contains(input.index) || !seen.insert(input).second) continue;
      inputs.push_back(input);
      is_manual.push_back(manual.contains(input));
    }
    made.insert(function.index_of(i));
    manual.add_results_of(i);
  }
  calls = all.first(made.size());
}

LastReads::LastReads(const Function& function, std::span<const uint32_t> calls)
    : function_(function), places_(function.num_values()) {
  for (size_t i = 0; i < calls.size(); ++i) {
    for (const Ref& r : function.operands_of(function.calls[calls[i]])) places_[r.index] = i + 1;
  }
  for (const Ref& r : function.results) {
    if (r) places_[r.index] = calls.size() + 1;
  }
}

bool LastReads::is_read_after(uint32_t call, size_t place) const {
  return places_[function_.index_of(call)] > place + 1;
}

}  // namespace torch_xla::executor
