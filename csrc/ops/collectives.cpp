#include "ops/collectives.h"

#include <algorithm>
#include <numeric>

#include "hlo/collectives.h"
#include "hlo/ops.h"
#include "lazy/function.h"
#include "lazy/node.h"
#include "lazy/operator.h"
#include "lazy/print.h"
#include "ops/exchange.h"
#include "ops/host_call.h"
#include "ops/lowering.h"
#include "spmd/sharding.h"
#include "util/error.h"

namespace torch_xla::ops {
namespace {

// The devices whose values are manual, in order; none in a program of one device, where a manual
// value is as all others.
hlo::Dims devices_apart(Lowering& l, int64_t size) {
  const spmd::Mesh* mesh = l.b.apart();
  TXLA_CHECK_KIND(util::ErrorKind::Value, mesh != nullptr || (l.b.mesh() == nullptr && size <= 1),
                  l.signature().op->name,
                  ": expected a manual tensor, of which each device has its own, got one of all "
                  "devices. Use enable_manual_sharding.");
  if (mesh == nullptr) return {};
  hlo::Dims all = mesh->devices;
  std::ranges::sort(all);
  return all;
}

// Groups of `all`, each once; of the whole where `named` is empty.
hlo::Groups groups_of(Lowering& l, hlo::Groups::Of of, const hlo::Dims& all, hlo::Dims named,
                      int64_t size) {
  hlo::Dims sorted = named;
  std::ranges::sort(sorted);
  TXLA_CHECK_KIND(util::ErrorKind::Value, size > 0 && sorted == all && std::ssize(all) % size == 0,
                  l.signature().op->name, ": expected groups of the ",
                  of == hlo::Groups::Of::Replicas ? "replicas " : "devices ", at::IntArrayRef(all),
                  ", each once, got groups of ", size, " of ", at::IntArrayRef(named), ".");
  hlo::Groups groups{of, {}};
  for (auto at = named.begin(); at != named.end(); at += size) {
    groups.members.emplace_back(at, at + size);
  }
  return groups;
}

// The groups of a call whose arguments from `members` on are members and size. Without members,
// where there is nobody to exchange with.
hlo::Groups groups_named(Lowering& l, size_t members) {
  using Of = hlo::Groups::Of;
  const int64_t size = l.integer(members + 1);
  const hlo::Dims all = devices_apart(l, size), named = l.ints(members);
  if (all.empty()) return {Of::Partitions, {}};
  if (!named.empty()) return groups_of(l, Of::Partitions, all, named, size);
  return groups_of(l, Of::Partitions, all, l.b.apart()->devices, std::ssize(all));
}

hlo::Value times(const hlo::Value& x, double scale) {
  if (scale == 1) return x;
  return hlo::binary("multiply", x, hlo::splat(x.builder(), scale, x.type()));
}

// Compilers exchange by bitwise operations of booleans alone, and not by xor.
bool is_by_hand(const hlo::Value& x, std::string_view reduction) {
  const bool is_bool = x.dtype() == hlo::DType::Pred;
  return reduction == "xor" || (!is_bool && (reduction == "and" || reduction == "or"));
}

hlo::Value reduced(const hlo::Value& x, std::string_view name, const hlo::Groups& groups) {
  const hlo::Reduction reduction = hlo::reduction_by(name);
  return is_by_hand(x, name) ? hlo::reduce_by_gather(x, reduction, groups)
                             : hlo::all_reduce(x, reduction, groups);
}

hlo::Value scattered(const hlo::Value& x, std::string_view name, int64_t dim,
                     const hlo::Groups& groups) {
  const hlo::Reduction reduction = hlo::reduction_by(name);
  return is_by_hand(x, name) ? hlo::reduce_scatter_by_parts(x, reduction, dim, groups)
                             : hlo::reduce_scatter(x, reduction, dim, groups);
}

hlo::Values all_reduce(Lowering& l) {
  const hlo::Groups groups = groups_named(l, 3);
  hlo::Value x = l.in(0);
  if (!groups.members.empty()) x = reduced(x, l.text(1), groups);
  return {times(x, l.floating(2))};
}

hlo::Values reduce_scatter(Lowering& l) {
  const hlo::Groups groups = groups_named(l, 4);
  hlo::Value x = l.in(0);
  if (!groups.members.empty()) x = scattered(x, l.text(1), l.integer(3), groups);
  return {times(x, l.floating(2))};
}

hlo::Values all_gather(Lowering& l) {
  const hlo::Groups groups = groups_named(l, 2);
  const hlo::Value x = l.in(0);
  return {groups.members.empty() ? x : hlo::all_gather(x, l.integer(1), groups)};
}

hlo::Values all_to_all(Lowering& l) {
  const hlo::Groups groups = groups_named(l, 3);
  const hlo::Value x = l.in(0);
  if (groups.members.empty()) return {x};
  return {hlo::all_to_all(x, l.integer(1), l.integer(2), groups)};
}

hlo::Value broadcast(Lowering& l, const hlo::Value& x, const hlo::Groups& groups) {
  const bool is_lacking = l.target().platform == "CPU";
  return is_lacking ? hlo::broadcast_by_gather(x, groups) : hlo::collective_broadcast(x, groups);
}

hlo::Values collective_broadcast(Lowering& l) {
  const hlo::Groups groups = groups_named(l, 1);
  return {groups.members.empty() ? l.in(0) : broadcast(l, l.in(0), groups)};
}

hlo::Groups pairs_of(Lowering& l, hlo::Groups::Of of, const hlo::Dims& all,
                     const hlo::Dims& named) {
  hlo::Groups pairs{of, {}};
  std::vector<hlo::Dims> ends(2);
  for (size_t i = 0; i < named.size(); ++i) {
    hlo::Dims& seen = ends[i % 2];
    const bool is_good =
        std::ranges::count(all, named[i]) == 1 && std::ranges::count(seen, named[i]) == 0;
    TXLA_CHECK_KIND(util::ErrorKind::Value, named.size() % 2 == 0 && is_good,
                    l.signature().op->name,
                    ": expected pairs of members, of which each sends once and gets once at most, "
                    "got ",
                    at::IntArrayRef(named), ".");
    seen.push_back(named[i]);
    if (i % 2 == 1) pairs.members.push_back({named[i - 1], named[i]});
  }
  return pairs;
}

hlo::Values collective_permute(Lowering& l) {
  hlo::Dims all = devices_apart(l, 1);
  if (all.empty()) all = {0};
  const hlo::Groups pairs = pairs_of(l, hlo::Groups::Of::Partitions, all, l.ints(1));
  const hlo::Value x = l.in(0);
  if (pairs.members.empty()) return {hlo::zero(l.b, x.type())};
  return {l.b.apart() == nullptr ? x : hlo::collective_permute(x, pairs)};  // to itself
}

// Gives the result of one tensor of an exchange, in StableHLO's words.
hlo::Value exchanged(Lowering& l, const hlo::Value& x, const hlo::Dims& dims,
                     const hlo::Groups& groups) {
  const std::string what = l.text(2);
  if (what == "all_reduce") {
    return times(reduced(x, l.text(3), groups), l.floating(4));
  }
  if (what == "reduce_scatter") {
    return times(scattered(x, l.text(3), dims.at(0), groups), l.floating(4));
  }
  if (what == "all_gather") return hlo::all_gather(x, dims.at(0), groups);
  if (what == "all_to_all") return hlo::all_to_all(x, dims.at(0), dims.at(1), groups);
  if (what == "collective_broadcast") return broadcast(l, x, groups);
  TXLA_CHECK(what == "collective_permute", "exchange: expected an operator, got ", what, ".");
  return groups.members.empty() ? hlo::zero(l.b, x.type()) : hlo::collective_permute(x, groups);
}

// By an operator of another name, since the recorder asks CPU kernels of this one what they refuse.
hlo::Values exchange_on_host(Lowering& l) {
  HostCall call(l.b, "torch_xla::exchange_on_host", Fails::Never);
  std::vector<std::optional<hlo::Value>> xs;
  for (const hlo::Value& x : l.list(0)) xs.emplace_back(x);
  call.tensors(xs).tensor(l.in(1));
  for (size_t i = 2; i < l.signature().arguments.size(); ++i) call.fixed(l.attr(i));
  std::vector<std::optional<hlo::Type>> types;
  for (size_t i = 0; i < l.num_outputs(); ++i) types.emplace_back(l.out(i));
  return call.results(types);
}

hlo::Values exchange(Lowering& l) {
  using Of = hlo::Groups::Of;
  TXLA_CHECK_KIND(
      util::ErrorKind::Value, l.b.mesh() == nullptr && l.b.apart() == nullptr,
      "exchange: expected one device a process, whose replicas exchange, got SPMD mode. "
      "Use manual tensors there.");
  if (l.target().exchanges_on_host) return exchange_on_host(l);
  const std::string what = l.text(2);
  TXLA_CHECK_KIND(util::ErrorKind::NotImplemented,
                  what != "send" && what != "receive" && what != "all_to_all_rows",
                  "exchange: ", "expected a call that all members of a group make alike on ",
                  l.target().platform, ", got ", what,
                  ". Use collective_permute, or all_to_all with equal parts.");
  const hlo::Dims dims = l.ints(5), members = l.ints(6);
  hlo::Groups groups;
  if (l.text(2) == "collective_permute") {
    hlo::Dims all = members;
    std::ranges::sort(all);
    all.erase(std::ranges::unique(all).begin(), all.end());
    groups = pairs_of(l, Of::Replicas, all, members);
  } else {
    hlo::Dims all(members.size());
    std::iota(all.begin(), all.end(), int64_t{0});
    groups = groups_of(l, Of::Replicas, all, members, l.integer(7));
    if (l.text(2) == "collective_broadcast") {  // StableHLO's sender is the first
      for (hlo::Dims& group : groups.members) std::swap(group[0], group.at(dims.at(0)));
    }
  }
  hlo::Values results;
  for (const hlo::Value& x : l.list(0)) results.push_back(exchanged(l, x, dims, groups));
  results.push_back(hlo::binary("add", l.in(1), hlo::splat_int(l.b, 1, l.in(1).type())));
  return results;
}

bool is_rule_of(const Rule* rule, std::initializer_list<RuleFunction> functions) {
  return rule != nullptr && std::ranges::find(functions, rule->lower) != functions.end();
}

}  // namespace

bool is_collective(const lazy::Operator& op) {
  return is_rule_of(op.rule, {all_reduce, reduce_scatter, all_gather, all_to_all,
                              collective_broadcast, collective_permute});
}

bool exchanges(const lazy::Signature& call) {
  if (is_rule_of(call.op->rule, {exchange})) return true;
  return call.expansion != nullptr &&
         std::ranges::any_of(call.expansion->calls, [](const lazy::Function::Call& inner) {
           return exchanges(*inner.signature);
         });
}

ExchangeNotes exchanges_of(const lazy::Function& function) {
  ExchangeNotes notes;
  for (const lazy::Function::Call& call : function.calls) {
    const lazy::Signature& signature = *call.signature;
    if (is_rule_of(signature.op->rule, {exchange})) {
      const auto text = [&](size_t i) { return signature.arguments[i].value.toStringRef(); };
      std::vector<const lazy::Geometry*> sent;
      for (const auto& operand : signature.operands) sent.push_back(operand.geometry);
      sent.pop_back();  // the order
      const std::string what = text(2);
      if (what == "send" || what == "receive") continue;  // of two members
      const std::string types = what == "all_to_all_rows" ? "" : " " + lazy::types_of(sent);
      notes.push_back({signature.arguments[6].value.toIntVector(),
                       signature.arguments[7].value.toInt(),
                       what + (text(3).empty() ? "" : " ") + text(3) + types, call.source.str()});
    } else if (signature.expansion != nullptr) {
      for (ExchangeNote& note : exchanges_of(*signature.expansion)) {
        if (note.line.empty()) note.line = call.source.str();
        notes.push_back(std::move(note));
      }
    }
  }
  return notes;
}

namespace rules {
const RuleFunction all_reduce = ops::all_reduce;
const RuleFunction reduce_scatter = ops::reduce_scatter;
const RuleFunction all_gather = ops::all_gather;
const RuleFunction all_to_all = ops::all_to_all;
const RuleFunction collective_broadcast = ops::collective_broadcast;
const RuleFunction collective_permute = ops::collective_permute;
const RuleFunction exchange = ops::exchange;
}  // namespace rules

}  // namespace torch_xla::ops
