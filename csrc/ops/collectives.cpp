#include "ops/collectives.h"

#include <algorithm>
#include <numeric>

#include "hlo/collectives.h"
#include "hlo/ops.h"
#include "lazy/function.h"
#include "lazy/node.h"
#include "lazy/operator.h"
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

void expect_no_mesh(Lowering& l) {
  TXLA_CHECK_KIND(util::ErrorKind::Value, l.b.mesh() == nullptr && l.b.apart() == nullptr,
                  l.signature().op->name,
                  ": expected one device a process, whose replicas exchange, got SPMD mode. Use "
                  "manual tensors there.");
}

// The groups of a call whose arguments from `members` on are members, size, replicas. Without
// members, where there is nobody to exchange with.
hlo::Groups groups_named(Lowering& l, size_t members) {
  using Of = hlo::Groups::Of;
  int64_t size = l.integer(members + 1);
  hlo::Dims named = l.ints(members), all;
  hlo::Groups groups{l.flag(members + 2) ? Of::Replicas : Of::Partitions, {}};
  if (groups.of == Of::Replicas) {
    expect_no_mesh(l);
    all.resize(named.empty() ? static_cast<size_t>(size) : named.size());
    std::iota(all.begin(), all.end(), int64_t{0});
  } else {
    all = devices_apart(l, size);
    if (all.empty()) return groups;
  }
  if (named.empty()) {
    named = groups.of == Of::Replicas ? all : l.b.apart()->devices;
    size = std::ssize(named);
  }
  hlo::Dims sorted = named;
  std::ranges::sort(sorted);
  TXLA_CHECK_KIND(util::ErrorKind::Value, size > 0 && sorted == all && std::ssize(all) % size == 0,
                  l.signature().op->name, ": expected groups of the ",
                  groups.of == Of::Replicas ? "replicas " : "devices ", at::IntArrayRef(all),
                  ", each once, got groups of ", size, " of ", at::IntArrayRef(named), ".");
  for (auto at = named.begin(); at != named.end(); at += size) {
    groups.members.emplace_back(at, at + size);
  }
  return groups;
}

hlo::Value times(const hlo::Value& x, double scale) {
  if (scale == 1) return x;
  return hlo::binary("multiply", x, hlo::splat(x.builder(), scale, x.type()));
}

hlo::Values all_reduce(Lowering& l) {
  const hlo::Groups groups = groups_named(l, 3);
  hlo::Value x = l.in(0);
  if (!groups.members.empty()) x = hlo::all_reduce(x, hlo::reduction_by(l.text(1)), groups);
  return {times(x, l.floating(2))};
}

hlo::Values reduce_scatter(Lowering& l) {
  const hlo::Groups groups = groups_named(l, 4);
  hlo::Value x = l.in(0);
  if (!groups.members.empty()) {
    x = hlo::reduce_scatter(x, hlo::reduction_by(l.text(1)), l.integer(3), groups);
  }
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

hlo::Values collective_broadcast(Lowering& l) {
  const hlo::Groups groups = groups_named(l, 1);
  const hlo::Value x = l.in(0);
  if (groups.members.empty()) return {x};
  const bool is_lacking = l.target().platform == "CPU";
  return {is_lacking ? hlo::broadcast_by_gather(x, groups) : hlo::collective_broadcast(x, groups)};
}

hlo::Values collective_permute(Lowering& l) {
  using Of = hlo::Groups::Of;
  const hlo::Dims named = l.ints(1);
  const bool replicas = l.flag(2);
  const hlo::Value x = l.in(0);
  hlo::Dims all = {0};
  if (replicas) {
    expect_no_mesh(l);
  } else if (const hlo::Dims apart = devices_apart(l, 1); !apart.empty()) {
    all = apart;
  }
  hlo::Groups pairs{replicas ? Of::Replicas : Of::Partitions, {}};
  std::vector<hlo::Dims> ends(2);
  const auto is_good = [&](int64_t member, const hlo::Dims& seen) {
    return (replicas ? member >= 0 : std::ranges::count(all, member) == 1) &&
           std::ranges::count(seen, member) == 0;
  };
  for (size_t i = 0; i < named.size(); ++i) {
    hlo::Dims& seen = ends[i % 2];
    TXLA_CHECK_KIND(util::ErrorKind::Value, named.size() % 2 == 0 && is_good(named[i], seen),
                    l.signature().op->name,
                    ": expected pairs of members, of which each sends once and gets once at most, "
                    "got ",
                    at::IntArrayRef(named), ".");
    seen.push_back(named[i]);
    if (i % 2 == 1) pairs.members.push_back({named[i - 1], named[i]});
  }
  if (pairs.members.empty()) return {hlo::zero(l.b, x.type())};
  if (!replicas && l.b.apart() == nullptr) return {x};  // of one device, to itself
  return {hlo::collective_permute(x, pairs)};
}

bool is_rule_of(const Rule* rule, std::initializer_list<RuleFunction> functions) {
  return rule != nullptr && std::ranges::find(functions, rule->lower) != functions.end();
}

}  // namespace

bool is_collective(const lazy::Signature& signature) {
  return is_rule_of(signature.op->rule, {all_reduce, reduce_scatter, all_gather, all_to_all,
                                         collective_broadcast, collective_permute});
}

int64_t replicas_named(const lazy::Signature& signature) {
  int64_t most = 0;
  if (is_collective(signature)) {
    const auto& given = signature.arguments;
    if (!given.back().value.toBool()) return 0;
    // Its one list are the members.
    for (const lazy::Argument& argument : given) {
      if (!argument.value.isIntList()) continue;
      for (const int64_t member : argument.value.toIntVector()) most = std::max(most, member + 1);
    }
    return std::max<int64_t>(most, 1);
  }
  if (signature.expansion == nullptr) return 0;
  for (const lazy::Function::Call& call : signature.expansion->calls) {
    most = std::max(most, replicas_named(*call.signature));
  }
  return most;
}

namespace rules {
const RuleFunction all_reduce = ops::all_reduce;
const RuleFunction reduce_scatter = ops::reduce_scatter;
const RuleFunction all_gather = ops::all_gather;
const RuleFunction all_to_all = ops::all_to_all;
const RuleFunction collective_broadcast = ops::collective_broadcast;
const RuleFunction collective_permute = ops::collective_permute;
}  // namespace rules

}  // namespace torch_xla::ops
