#include "dispatch/replicas/exchange.h"

#include <numeric>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "dispatch/calls/own_operator.h"
#include "dispatch/replicas/apart.h"
#include "dispatch/replicas/groups.h"
#include "dispatch/replicas/order.h"
#include "dispatch/sharding/collectives.h"
#include "executor/run/runtime.h"
#include "executor/step/sync.h"
#include "lazy/lock.h"
#include "lazy/recording.h"
#include "ops/exchange.h"
#include "util/error.h"
#include "util/unlocked.h"

namespace torch_xla::dispatch {

bool exchanges_on_host() { return executor::Runtime::get().target().exchanges_on_host; }

namespace {

using Tensors = std::vector<at::Tensor>;

// --- shapes ---------------------------------------------------------------------------------

at::Tensor shape_of(const at::Tensor& x, std::string_view what, c10::IntArrayRef dims,
                    int64_t size) {
  if (what == "send") return x.new_empty({0});
  if (what != "all_to_all_rows") return shape_given(x, what, dims, size);
  const c10::IntArrayRef gets = dims.slice(static_cast<size_t>(size));
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.at(0) = std::accumulate(gets.begin(), gets.end(), int64_t{0});
  return x.new_empty(sizes);
}

Tensors shapes(at::TensorList xs, std::string_view what, c10::IntArrayRef dims, int64_t size) {
  Tensors results;
  for (const at::Tensor& x : xs) results.push_back(shape_of(x, what, dims, size));
  return results;
}

Tensors exchange_shapes(at::TensorList xs, const at::Tensor& order, c10::string_view what,
                        c10::string_view /*reduction*/, double /*scale*/, c10::IntArrayRef dims,
                        c10::IntArrayRef /*members*/, int64_t size) {
  Tensors results = shapes(xs, what, dims, size);
  results.push_back(at::empty_like(order));
  return results;
}

const OwnOperator exchange(
    "exchange(Tensor[] tensors, Tensor order, str what, str reduction, float scale, int[] dims, "
    "int[] members, int size) -> Tensor[]",
    exchange_shapes, ops::rules::exchange);

// --- calls ----------------------------------------------------------------------------------

// The groups of a call, with those that it leaves out.
struct Groups {
  std::vector<int64_t> members;
  int64_t size, replicas;

  Groups(std::string_view who, const at::Tensor& x, at::IntArrayRef given, int64_t given_size)
      : members(given.vec()), size(given_size), replicas(num_replicas(x.device().index())) {
    if (members.empty()) {
      size = replicas;
      for (int64_t i = 0; i < replicas; ++i) members.push_back(i);
    }
    std::vector<bool> seen(static_cast<size_t>(replicas));
    for (const int64_t member : members) {
      const bool is_replica = member >= 0 && member < replicas;
      TXLA_CHECK_KIND(util::ErrorKind::Value, is_replica, "replicas: ", who,
                      ": expected groups of the ", replicas,
                      " replica(s) of this job, got replica ", member, ".");
      TXLA_CHECK_KIND(util::ErrorKind::Value, !seen[static_cast<size_t>(member)], who,
                      ": expected each replica in one group, got ", members, ".");
      seen[static_cast<size_t>(member)] = true;
    }
    TXLA_CHECK_KIND(util::ErrorKind::Value, size > 0 && std::ssize(members) % size == 0, who,
                    ": expected groups of one size, got ", std::ssize(members),
                    " members in groups of ", size, ".");
  }
};

Tensors scaled(at::TensorList xs, double scale) {
  Tensors results;
  for (const at::Tensor& x : xs) {
    results.push_back(scale == 1 ? x.clone() : x.mul(scale).to(x.scalar_type()));
  }
  return results;
}

// Returns whether a plugin that exchanges cannot do so: it would have to run a program that some
// replicas do not launch, or that is another one on each.
bool is_partial(const at::Tensor& x, std::string_view what, at::IntArrayRef members, int64_t size) {
  if (exchanges_on_host()) return false;
  if (what == "all_to_all_rows" || what == "send" || what == "receive") return true;
  const int64_t replicas = num_replicas(x.device().index());
  const bool is_of_two = size == 0 && members.size() == 2;  // one sends, one gets
  return size == 0 ? is_of_two && replicas > 2 : std::ssize(members) != replicas;
}

// Exchanges at once, through the host and outside of a program.
Tensors exchange_outside(at::TensorList xs, std::string_view what, std::string_view reduction,
                         double scale, at::IntArrayRef dims, at::IntArrayRef members,
                         int64_t size) {
  TXLA_CHECK_KIND(util::ErrorKind::NotImplemented, lazy::Recording::current() == nullptr, what,
                  ": expected a call of all replicas of the job in a function that is recorded, "
                  "got one of ",
                  members, ". Call it outside of the function.");
  launch_exchanges();
  Tensors given, results;
  for (const at::Tensor& x : xs) given.push_back(x.cpu());
  for (const at::Tensor& x : given) results.push_back(shape_of(x, what, dims, size));
  results.push_back(at::zeros({}, at::kLong));
  {
    util::Unlocked unlocked;  // it waits for others
    exchange_on_host(given, at::zeros({}, at::kLong), what, reduction, scale, dims, members, size,
                     results);
    unlocked.end();
  }
  results.pop_back();
  for (at::Tensor& result : results) result = result.to(xs[0].device());
  return results;
}

Tensors record(at::TensorList xs, std::string_view what, std::string_view reduction, double scale,
               at::IntArrayRef dims, at::IntArrayRef members, int64_t size,
               Order in = Order::Exchanges) {
  const at::AutoDispatchBelowADInplaceOrView below;
  if (is_partial(xs[0], what, members, size)) {
    return exchange_outside(xs, what, reduction, scale, dims, members, size);
  }
  const bool is_apart =
      ExchangesApart::wanted() && !exchanges_on_host() && lazy::Recording::current() == nullptr;
  if (is_apart) {
    executor::launch(xs, xs[0].device().index(),
                     {.of_run = "an exchange by itself", .program = "exchanged"});
  }
  Tensors results;
  {
    const lazy::GraphLock lock;
    const int device = xs[0].device().index();
    const at::Tensor order = lazy::make_tensor(read_order(device, in), geometry_of_order(), device);
    results = exchange(xs, order, what, reduction, scale, dims, members, size);
    write_order(device, lazy::expect_lazy(results.back(), "exchange").read(), in);
  }
  results.pop_back();
  if (is_apart) launch_exchanges();
  return results;
}

}  // namespace

std::vector<at::Tensor> all_reduce(at::TensorList xs, std::string_view reduction, double scale,
                                   at::IntArrayRef members, int64_t size) {
  if (xs.empty()) return {};
  const Groups groups("all_reduce", xs[0], members, size);
  if (groups.size == 1) return scaled(xs, scale);
  return record(xs, "all_reduce", reduction, scale, {}, groups.members, groups.size);
}

std::vector<at::Tensor> reduce_scatter(at::TensorList xs, std::string_view reduction, double scale,
                                       int64_t dim, at::IntArrayRef members, int64_t size) {
  if (xs.empty()) return {};
  const Groups groups("reduce_scatter", xs[0], members, size);
  if (groups.size == 1) return scaled(xs, scale);
  return record(xs, "reduce_scatter", reduction, scale, dim, groups.members, groups.size);
}

std::vector<at::Tensor> all_gather(at::TensorList xs, int64_t dim, at::IntArrayRef members,
                                   int64_t size) {
  if (xs.empty()) return {};
  const Groups groups("all_gather", xs[0], members, size);
  if (groups.size == 1) return scaled(xs, 1);
  return record(xs, "all_gather", "", 1, dim, groups.members, groups.size);
}

at::Tensor all_to_all(const at::Tensor& x, int64_t split_dim, int64_t join_dim,
                      at::IntArrayRef members, int64_t size) {
  const Groups groups("all_to_all", x, members, size);
  if (groups.size == 1) return x.clone();
  return record(x, "all_to_all", "", 1, {split_dim, join_dim}, groups.members, groups.size)[0];
}

std::vector<at::Tensor> collective_broadcast(at::TensorList xs, int64_t root,
                                             at::IntArrayRef members, int64_t size) {
  if (xs.empty()) return {};
  const Groups groups("collective_broadcast", xs[0], members, size);
  TXLA_CHECK_KIND(util::ErrorKind::Value, root >= 0 && root < groups.size,
                  "collective_broadcast: expected a root below ", groups.size, ", got ", root, ".");
  if (groups.size == 1) return scaled(xs, 1);
  return record(xs, "collective_broadcast", "", 1, root, groups.members, groups.size);
}

at::Tensor all_to_all_rows(const at::Tensor& x, at::IntArrayRef sends, at::IntArrayRef gets,
                           at::IntArrayRef members) {
  const Groups groups("all_to_all", x, members, std::ssize(members));
  if (groups.size == 1) return x.clone();
  std::vector<int64_t> dims = sends.vec();
  dims.insert(dims.end(), gets.begin(), gets.end());
  return record(x, "all_to_all_rows", "", 1, dims, groups.members, groups.size)[0];
}

void send_to(const at::Tensor& x, int64_t place, int64_t tag, at::IntArrayRef members) {
  const Groups groups("send", x, members, std::ssize(members));
  record(x, "send", "", 1, {place, tag}, groups.members, groups.size, Order::Sends);
  launch_exchanges(Order::Sends);  // the other may wait for it alone
}

at::Tensor receive_from(const at::Tensor& like, int64_t place, int64_t tag,
                        at::IntArrayRef members) {
  const Groups groups("receive", like, members, std::ssize(members));
  const at::AutoDispatchBelowADInplaceOrView below;
  return record(at::zeros_like(like), "receive", "", 1, {place, tag}, groups.members,
                groups.size)[0];
}

at::Tensor collective_permute(const at::Tensor& x, at::IntArrayRef pairs) {
  const int64_t replicas = num_replicas(x.device().index());
  TXLA_CHECK_KIND(util::ErrorKind::Value, pairs.size() % 2 == 0,
                  "collective_permute: expected pairs, got ", pairs, ".");
  std::vector<bool> sends(static_cast<size_t>(replicas)), gets(sends);
  for (size_t i = 0; i < pairs.size(); ++i) {
    const int64_t member = pairs[i];
    TXLA_CHECK_KIND(util::ErrorKind::Value, member >= 0 && member < replicas,
                    "collective_permute: expected pairs of the ", replicas,
                    " replica(s) of this job, got replica ", member, ".");
    std::vector<bool>::reference seen = (i % 2 == 0 ? sends : gets)[static_cast<size_t>(member)];
    TXLA_CHECK_KIND(util::ErrorKind::Value, !seen,
                    "collective_permute: expected pairs of members, of which each sends once and "
                    "gets once at most, got ",
                    pairs, ".");
    seen = true;
  }
  if (pairs.empty()) return at::zeros_like(x);
  if (replicas == 1) return x.clone();
  return record(x, "collective_permute", "", 1, {}, pairs, 0)[0];
}

void CollectiveKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                  torch::jit::Stack* stack) {
  if (!stack->back().toBool()) return (*recorder_)(op, keys, stack);
  const std::string_view name =
      std::string_view(op.schema().name()).substr(sizeof("torch_xla::") - 1);
  const size_t base = stack->size() - op.schema().arguments().size();
  const auto argument = [&](size_t i) -> const c10::IValue& { return (*stack)[base + i]; };
  const at::Tensor x = argument(0).toTensor();
  const auto integer = [&](size_t i) { return argument(i).toInt(); };
  const auto members = [&](size_t i) { return argument(i).toIntVector(); };
  at::Tensor result;
  if (name == "all_reduce") {
    result = all_reduce(x, argument(1).toStringView(), argument(2).toDouble(), members(3),
                        integer(4))[0];
  } else if (name == "reduce_scatter") {
    result = reduce_scatter(x, argument(1).toStringView(), argument(2).toDouble(), integer(3),
                            members(4), integer(5))[0];
  } else if (name == "all_gather") {
    result = all_gather(x, integer(1), members(2), integer(3))[0];
  } else if (name == "all_to_all") {
    result = all_to_all(x, integer(1), integer(2), members(3), integer(4));
  } else if (name == "collective_broadcast") {
    result = collective_broadcast(x, 0, members(1), integer(2))[0];
  } else {
    result = collective_permute(x, members(1));
  }
  stack->resize(base);
  stack->emplace_back(std::move(result));
}

namespace {

// --- of lists, for Python -------------------------------------------------------------------

Tensors reduced_shapes(at::TensorList xs, c10::string_view, double, c10::IntArrayRef, int64_t) {
  return shapes(xs, "all_reduce", {}, 1);
}
Tensors scattered_shapes(at::TensorList xs, c10::string_view, double, int64_t dim, c10::IntArrayRef,
                         int64_t size) {
  return shapes(xs, "reduce_scatter", dim, size);
}
Tensors gathered_shapes(at::TensorList xs, int64_t dim, c10::IntArrayRef, int64_t size) {
  return shapes(xs, "all_gather", dim, size);
}
Tensors sent_shapes(at::TensorList xs, int64_t, c10::IntArrayRef, int64_t) {
  return shapes(xs, "collective_broadcast", {}, 1);
}

TORCH_LIBRARY_FRAGMENT(torch_xla, m) {
  m.def(
      "exchange_all_reduce(Tensor[] tensors, str reduction, float scale, int[] members, int size)"
      " -> Tensor[]");
  m.def(
      "exchange_reduce_scatter(Tensor[] tensors, str reduction, float scale, int dim, "
      "int[] members, int size) -> Tensor[]");
  m.def("exchange_all_gather(Tensor[] tensors, int dim, int[] members, int size) -> Tensor[]");
  m.def("exchange_broadcast(Tensor[] tensors, int root, int[] members, int size) -> Tensor[]");
  m.def("exchange_send(Tensor tensor, int place, int tag, int[] members) -> ()");
  m.def("exchange_receive(Tensor like, int place, int tag, int[] members) -> Tensor");
}
TORCH_LIBRARY_IMPL(torch_xla, Meta, m) {
  m.impl("exchange_all_reduce", reduced_shapes);
  m.impl("exchange_reduce_scatter", scattered_shapes);
  m.impl("exchange_all_gather", gathered_shapes);
  m.impl("exchange_broadcast", sent_shapes);
}
TORCH_LIBRARY_IMPL(torch_xla, XLA, m) {
  m.impl("exchange_all_reduce", all_reduce);
  m.impl("exchange_reduce_scatter", reduce_scatter);
  m.impl("exchange_all_gather", all_gather);
  m.impl("exchange_broadcast", collective_broadcast);
  m.impl("exchange_send", send_to);
  m.impl("exchange_receive", receive_from);
}

}  // namespace
}  // namespace torch_xla::dispatch
