// The CPU kernel torch_xla::exchange_on_host, which programs call where the plugin cannot exchange:
// the values go through a backend of c10d for the CPU. Bytes are sent as they are; sums and the
// like are made in dtypes that the backend has.
#include <algorithm>
#include <chrono>
#include <deque>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/library.h>

#include "cpu/host_kernel.h"
#include "debug/trace.h"
#include "dispatch/replicas/agreement.h"
#include "dispatch/replicas/apart.h"
#include "dispatch/replicas/exchange.h"
#include "dispatch/replicas/exchange_times.h"
#include "dispatch/replicas/groups.h"
#include "lazy/geometry.h"
#include "lazy/print.h"
#include "util/error.h"
#include "util/lock_order.h"

namespace torch_xla::dispatch {
namespace {

using Tensors = std::vector<at::Tensor>;
using c10d::ReduceOp;

// An exchange, from its beginning to its end.
class Exchange {
 public:
  const ReplicaGroup group;

  Exchange(std::string_view what, std::string_view reduction, at::TensorList xs,
           at::IntArrayRef members, int64_t size)
      : group(replica_group(members, size)) {
    if (group.size() == 1) return;
    std::string text = text_of(what, reduction, xs);
    span_.emplace(text);
    told_ = agree(group, std::move(text));
    span_->detail("line", [this] { return told_.line; });
    span_->detail("ranks", [this] { return c10::str(at::IntArrayRef(group.members)); });
  }
  ~Exchange() {
    if (group.size() > 1) note_exchange_time(told_, group.members, Clock::now() - start_);
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  int64_t size() const { return group.size(); }
  c10d::Backend& backend() const { return *group.backend; }
  void await(const c10::intrusive_ptr<c10d::Work>& work) const { dispatch::await(work, told_); }

 private:
  // In the words of ops::ExchangeNote.
  static std::string text_of(std::string_view what, std::string_view reduction, at::TensorList xs) {
    if (what == "all_to_all_rows") return std::string(what);  // each has other rows
    std::vector<const lazy::Geometry*> sent;
    for (const at::Tensor& x : xs) {
      sent.push_back(lazy::intern_contiguous(x.scalar_type(), x.sizes()));
    }
    const std::string after = reduction.empty() ? " " : " " + std::string(reduction) + " ";
    return std::string(what) + after + lazy::types_of(sent);
  }

  using Clock = std::chrono::steady_clock;

  const Clock::time_point start_ = Clock::now();
  std::optional<debug::Span> span_;
  Told told_;
};

// --- bytes ----------------------------------------------------------------------------------

at::Tensor bytes_of(const at::Tensor& x) { return x.contiguous().reshape(-1).view(at::kByte); }

// All of their bytes, one tensor after the other.
at::Tensor joined_bytes(at::TensorList xs) {
  if (xs.size() == 1) return bytes_of(xs[0]);
  Tensors bytes;
  for (const at::Tensor& x : xs) bytes.push_back(bytes_of(x));
  return at::cat(bytes);
}

// The tensor of this dtype and these sizes whose bytes begin at `begin`, which moves on.
at::Tensor take(const at::Tensor& bytes, int64_t& begin, at::ScalarType dtype,
                at::IntArrayRef sizes) {
  const int64_t length = c10::multiply_integers(sizes) * static_cast<int64_t>(elementSize(dtype));
  at::Tensor part = bytes.narrow(0, begin, length);
  begin += length;
  // Elements begin where their dtype wants them to.
  if (part.storage_offset() % static_cast<int64_t>(elementSize(dtype)) != 0) part = part.clone();
  return part.view(dtype).reshape(sizes);
}

// --- reductions -----------------------------------------------------------------------------

ReduceOp::RedOpType reduce_op(std::string_view reduction) {
  static const std::map<std::string_view, ReduceOp::RedOpType> all = {
      {"add", ReduceOp::SUM},     {"multiply", ReduceOp::PRODUCT}, {"minimum", ReduceOp::MIN},
      {"maximum", ReduceOp::MAX}, {"and", ReduceOp::BAND},         {"or", ReduceOp::BOR},
      {"xor", ReduceOp::BXOR}};
  const auto found = all.find(reduction);
  TXLA_CHECK_KIND(util::ErrorKind::Value, found != all.end(),
                  "all_reduce: expected add, multiply, minimum, maximum, and, or, xor, got '",
                  reduction, "'.");
  return found->second;
}

// A dtype in which the backend makes the same of the values, and the values in it.
at::Tensor as_sent(const at::Tensor& x, ReduceOp::RedOpType& op) {
  const auto is_bits = [&] {
    return op == ReduceOp::BAND || op == ReduceOp::BOR || op == ReduceOp::BXOR;
  };
  switch (x.scalar_type()) {
    case at::kBool:  // a sum is true where any is
      if (op == ReduceOp::SUM || op == ReduceOp::MAX) op = ReduceOp::BOR;
      if (op == ReduceOp::PRODUCT || op == ReduceOp::MIN) op = ReduceOp::BAND;
      return x.to(at::kByte);
    case at::kByte:
    case at::kChar:
    case at::kInt:
    case at::kLong:
      return x;
    case at::kShort:
      return x.to(at::kInt);
    case at::kUInt16:
      return x.to(at::kInt);
    case at::kUInt32:
      return x.to(at::kLong);
    case at::kUInt64:
      // Sums, products and bits are those of signed numbers.
      TXLA_CHECK_KIND(util::ErrorKind::Type, op != ReduceOp::MIN && op != ReduceOp::MAX,
                      "all_reduce: expected a dtype whose values can be compared, got uint64. "
                      "Convert it to int64.");
      return x.view(at::kLong);
    default:
      break;
  }
  TXLA_CHECK_KIND(util::ErrorKind::Type, !is_bits(),
                  "all_reduce: expected integers or booleans for bits, got ",
                  c10::toString(x.scalar_type()), ".");
  if (x.is_complex()) {
    TXLA_CHECK_KIND(util::ErrorKind::Type, op == ReduceOp::SUM,
                    "all_reduce: expected a sum of complex numbers. Reduce real and imaginary "
                    "parts.");
    return at::view_as_real(x.resolve_conj());
  }
  const bool is_sent = x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble ||
                       x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16;
  return is_sent ? x : x.to(at::kFloat);
}

at::Tensor as_given(const at::Tensor& sent, at::ScalarType dtype) {
  if (sent.scalar_type() == dtype) return sent;
  if (c10::isComplexType(dtype)) return at::view_as_complex(sent.contiguous());
  if (dtype == at::kUInt64) return sent.view(dtype);
  return sent.to(dtype);
}

void scale_by(Tensors& xs, double scale) {
  if (scale == 1) return;
  for (at::Tensor& x : xs) {
    if (x.is_floating_point() || x.is_complex()) {
      x.mul_(scale);
    } else {
      x = x.mul(scale).to(x.scalar_type());
    }
  }
}

// Tensors of one dtype and reduction, which go together.
struct Batch {
  Tensors sent;
  std::vector<size_t> places;
};

template <class Reduce>
Tensors reduced(at::TensorList xs, std::string_view reduction, Reduce reduce) {
  std::map<std::pair<at::ScalarType, ReduceOp::RedOpType>, Batch> batches;
  for (size_t i = 0; i < xs.size(); ++i) {
    ReduceOp::RedOpType op = reduce_op(reduction);
    const at::Tensor sent = as_sent(xs[i], op);
    Batch& batch = batches[{sent.scalar_type(), op}];
    batch.sent.push_back(sent);
    batch.places.push_back(i);
  }
  Tensors results(xs.size());
  for (auto& [kind, batch] : batches) {
    Tensors made = reduce(batch.sent, kind.second);
    for (size_t i = 0; i < made.size(); ++i) {
      const size_t place = batch.places[i];
      results[place] = as_given(made[i], xs[place].scalar_type());
    }
  }
  return results;
}

Tensors all_reduced(at::TensorList xs, std::string_view reduction, const Exchange& exchange) {
  return reduced(xs, reduction, [&](const Tensors& sent, ReduceOp::RedOpType op) {
    Tensors flat;
    for (const at::Tensor& x : sent) flat.push_back(x.reshape(-1));
    at::Tensor all = flat.size() == 1 ? flat[0].clone() : at::cat(flat);
    if (all.numel() != 0) {
      Tensors given = {all};
      c10d::AllreduceOptions options;
      options.reduceOp = op;
      exchange.await(exchange.backend().allreduce(given, options));
    }
    Tensors results;
    int64_t begin = 0;
    for (const at::Tensor& x : sent) {
      results.push_back(all.narrow(0, begin, x.numel()).view(x.sizes()));
      begin += x.numel();
    }
    return results;
  });
}

// --- parts ----------------------------------------------------------------------------------

// Row i of what is given goes to member i, whose row comes back in row i.
at::Tensor exchanged_rows(const at::Tensor& rows, const Exchange& exchange) {
  at::Tensor sent = bytes_of(rows), got = at::empty_like(sent);
  if (sent.numel() != 0) {
    std::vector<int64_t> equal;
    exchange.await(exchange.backend().alltoall_base(got, sent, equal, equal));
  }
  return got.view(rows.scalar_type()).view(rows.sizes());
}

// The parts along a dimension, as rows.
at::Tensor rows_of(const at::Tensor& x, int64_t dim, int64_t count) {
  std::vector<int64_t> sizes = x.sizes().vec();
  const auto at = static_cast<size_t>(dim);
  sizes[at] /= count;
  sizes.insert(sizes.begin() + dim, count);
  return x.reshape(sizes).movedim(dim, 0).contiguous();
}

// In the order of the members, so that it is the same on each. The result takes the first row's
// memory.
at::Tensor reduced_rows(const at::Tensor& rows, ReduceOp::RedOpType op) {
  at::Tensor all = rows[0];
  for (int64_t i = 1; i < rows.size(0); ++i) {
    const at::Tensor row = rows[i];
    switch (op) {
      case ReduceOp::SUM:
        all.add_(row);
        break;
      case ReduceOp::PRODUCT:
        all.mul_(row);
        break;
      case ReduceOp::MIN:
        at::minimum_out(all, all, row);
        break;
      case ReduceOp::MAX:
        at::maximum_out(all, all, row);
        break;
      case ReduceOp::BAND:
        all.bitwise_and_(row);
        break;
      case ReduceOp::BOR:
        all.bitwise_or_(row);
        break;
      default:
        all.bitwise_xor_(row);
        break;
    }
  }
  return all;
}

Tensors reduce_scattered(at::TensorList xs, std::string_view reduction, int64_t dim,
                         const Exchange& exchange) {
  return reduced(xs, reduction, [&](const Tensors& sent, ReduceOp::RedOpType op) {
    Tensors rows;
    std::vector<std::vector<int64_t>> sizes;
    for (const at::Tensor& x : sent) {
      const at::Tensor parts = rows_of(x, dim, exchange.size());
      sizes.push_back(parts.sizes().slice(1).vec());
      rows.push_back(parts.reshape({exchange.size(), -1}));
    }
    const at::Tensor given = rows.size() == 1 ? rows[0] : at::cat(rows, 1);
    const at::Tensor all = reduced_rows(exchanged_rows(given, exchange), op);
    Tensors results;
    int64_t begin = 0;
    for (const std::vector<int64_t>& of : sizes) {
      const int64_t length = c10::multiply_integers(of);
      results.push_back(all.narrow(0, begin, length).view(of));
      begin += length;
    }
    return results;
  });
}

// The bytes of all members, in rows.
at::Tensor gathered_rows(at::Tensor sent, const Exchange& exchange) {
  at::Tensor got = at::empty({exchange.size(), sent.numel()}, sent.options());
  if (sent.numel() != 0) {
    at::Tensor flat = got.view(-1);
    exchange.await(exchange.backend()._allgather_base(flat, sent));
  }
  return got;
}

Tensors all_gathered(at::TensorList xs, int64_t dim, const Exchange& exchange) {
  if (xs.size() == 1 && dim == 0) {  // the rows are the result
    std::vector<int64_t> sizes = xs[0].sizes().vec();
    sizes[0] *= exchange.size();
    const at::Tensor rows = gathered_rows(bytes_of(xs[0]), exchange);
    return {rows.view(-1).view(xs[0].scalar_type()).view(sizes)};
  }
  const at::Tensor got = gathered_rows(joined_bytes(xs), exchange);
  std::vector<Tensors> parts(xs.size());
  for (const at::Tensor& row : got.unbind(0)) {
    int64_t begin = 0;
    for (size_t i = 0; i < xs.size(); ++i) {
      parts[i].push_back(take(row, begin, xs[i].scalar_type(), xs[i].sizes()));
    }
  }
  Tensors results;
  for (const Tensors& of : parts) results.push_back(at::cat(of, dim));
  return results;
}

at::Tensor all_exchanged(const at::Tensor& x, int64_t split_dim, int64_t join_dim,
                         const Exchange& exchange) {
  return at::cat(exchanged_rows(rows_of(x, split_dim, exchange.size()), exchange).unbind(0),
                 join_dim);
}

Tensors sent_to_all(at::TensorList xs, int64_t root, const Exchange& exchange) {
  at::Tensor bytes = joined_bytes(xs);
  if (xs.size() == 1) bytes = bytes.clone();
  if (bytes.numel() != 0) {
    Tensors given = {bytes};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    exchange.await(exchange.backend().broadcast(given, options));
  }
  Tensors results;
  int64_t begin = 0;
  for (const at::Tensor& x : xs) results.push_back(take(bytes, begin, x.scalar_type(), x.sizes()));
  return results;
}

// Messages of permutations bear it: those of programs' own sends, which may overtake, bear others,
// channels' the numbers below it (_src/collectives/channels.py).
constexpr int kTagOfPermutations = std::numeric_limits<int>::max();

at::Tensor permuted(const at::Tensor& x, at::IntArrayRef pairs, const Exchange& exchange) {
  const std::vector<int64_t>& members = exchange.group.members;
  if (exchange.size() == 1) return x.clone();
  const auto place = [&](int64_t member) {
    return static_cast<int>(std::ranges::find(members, member) - members.begin());
  };
  const int64_t self = members[static_cast<size_t>(exchange.group.place)];
  at::Tensor got = at::zeros_like(x.contiguous());
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  Tensors given = {x.contiguous()}, taken = {got};
  for (size_t i = 0; i < pairs.size() && x.numel() != 0; i += 2) {
    if (pairs[i] == self && pairs[i + 1] == self) {
      got.copy_(x);
    } else if (pairs[i] == self) {
      works.push_back(exchange.backend().send(given, place(pairs[i + 1]), kTagOfPermutations));
    } else if (pairs[i + 1] == self) {
      works.push_back(exchange.backend().recv(taken, place(pairs[i]), kTagOfPermutations));
    }
  }
  for (const auto& work : works) exchange.await(work);
  return got;
}

// Rows as bytes, so many to and from each member.
at::Tensor exchanged_uneven(const at::Tensor& x, at::IntArrayRef dims, const Exchange& exchange) {
  std::vector<int64_t> sizes = x.sizes().vec();
  const int64_t row = c10::multiply_integers(x.sizes().slice(1)) * x.element_size();
  std::vector<int64_t> sends, gets;
  for (int64_t i = 0; i < 2 * exchange.size(); ++i) {
    (i < exchange.size() ? sends : gets).push_back(dims[static_cast<size_t>(i)] * row);
  }
  const auto count = dims.slice(static_cast<size_t>(exchange.size()));
  sizes[0] = std::accumulate(count.begin(), count.end(), int64_t{0});
  at::Tensor sent = bytes_of(x), got = at::empty({sizes[0] * row}, sent.options());
  exchange.await(exchange.backend().alltoall_base(got, sent, gets, sends));
  return got.view(x.scalar_type()).view(sizes);
}

// Values that were sent and may still be on their way, with their memory; the oldest first.
struct Sends {
  util::Mutex mutex{util::Rank::Section};
  std::deque<std::pair<c10::intrusive_ptr<c10d::Work>, Tensors>> all;
};

Sends& sends() {
  static auto& it = *new Sends;
  return it;
}

void finish_sends_but(size_t most) {
  while (true) {
    c10::intrusive_ptr<c10d::Work> oldest;
    {
      const std::lock_guard lock(sends().mutex);
      if (sends().all.size() <= most) return;
      oldest = sends().all.front().first;
    }
    await(oldest, {"what was sent", ""});
    const std::lock_guard lock(sends().mutex);
    if (!sends().all.empty() && sends().all.front().first == oldest) sends().all.pop_front();
  }
}

at::Tensor sent(const at::Tensor& x, at::IntArrayRef dims, const ReplicaGroup& group) {
  constexpr size_t kMost = 64;  // then who sends waits
  finish_sends_but(kMost);
  Tensors given = {bytes_of(x).clone()};
  auto work = group.backend->send(given, static_cast<int>(dims[0]), static_cast<int>(dims[1]));
  const std::lock_guard lock(sends().mutex);
  sends().all.emplace_back(std::move(work), std::move(given));
  return at::empty({0}, x.options());
}

at::Tensor received(const at::Tensor& like, at::IntArrayRef dims, const ReplicaGroup& group) {
  at::Tensor got = at::empty({like.numel() * like.element_size()}, at::kByte);
  const std::string from = std::to_string(group.members[static_cast<size_t>(dims[0])]);
  await(begin_receive(got, dims[0], dims[1], group.members), {"what rank " + from + " sends", ""});
  return got.view(like.scalar_type()).view(like.sizes());
}

// --- the kernel -----------------------------------------------------------------------------

// Any but a reduction of all.
Tensors results_of(at::TensorList xs, c10::string_view what, c10::string_view reduction,
                   double scale, at::IntArrayRef dims, at::IntArrayRef members, int64_t size) {
  Tensors results;
  if (size == 0 && std::ranges::count(members, this_replica()) == 0) {  // pairs of others
    for (const at::Tensor& x : xs) results.push_back(at::zeros_like(x.contiguous()));
    return results;
  }
  if (what == "send" || what == "receive") {  // of two members
    const ReplicaGroup group = replica_group(members, size);
    return {what == "send" ? sent(xs[0], dims, group) : received(xs[0], dims, group)};
  }
  const Exchange exchange(what, reduction, xs, members, size);
  if (what == "reduce_scatter") {
    results = reduce_scattered(xs, reduction, dims[0], exchange);
    scale_by(results, scale);
  } else if (what == "all_gather") {
    results = all_gathered(xs, dims[0], exchange);
  } else if (what == "all_to_all") {
    for (const at::Tensor& x : xs) results.push_back(all_exchanged(x, dims[0], dims[1], exchange));
  } else if (what == "collective_permute") {
    for (const at::Tensor& x : xs) results.push_back(permuted(x, members, exchange));
  } else if (what == "all_to_all_rows") {
    for (const at::Tensor& x : xs) results.push_back(exchanged_uneven(x, dims, exchange));
  } else {
    TXLA_CHECK(what == "collective_broadcast", "exchange: expected an operator, got ", what, ".");
    results = sent_to_all(xs, dims[0], exchange);
  }
  return results;
}

// Large tensors are reduced in the memory of their results; others go together, since each message
// takes its time, as far as a copy of them may be large.
void all_reduce_into(at::TensorList xs, std::string_view reduction, double scale,
                     const Exchange& exchange, at::TensorList out) {
  constexpr size_t kLarge = 1 << 22, kJoined = 1 << 25;  // bytes
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  std::vector<Tensors> large;
  Tensors small;
  std::vector<size_t> places;
  size_t bytes = 0;  // of the small ones
  const auto reduce_small = [&] {
    Tensors results = all_reduced(small, reduction, exchange);
    scale_by(results, scale);
    for (size_t i = 0; i < results.size(); ++i) out[places[i]].copy_(results[i]);
    small.clear();
    places.clear();
    bytes = 0;
  };
  for (size_t i = 0; i < xs.size(); ++i) {
    c10d::AllreduceOptions options;
    ReduceOp::RedOpType op = reduce_op(reduction);
    if (xs[i].nbytes() < kLarge || !as_sent(xs[i], op).is_same(xs[i])) {
      small.push_back(xs[i]);
      places.push_back(i);
      bytes += xs[i].nbytes();
      if (bytes >= kJoined) reduce_small();
      continue;
    }
    options.reduceOp = op;
    large.push_back({out[i].copy_(xs[i])});
    works.push_back(exchange.backend().allreduce(large.back(), options));
  }
  for (const auto& work : works) exchange.await(work);
  for (const Tensors& given : large) {
    Tensors results = given;
    scale_by(results, scale);
    if (!results[0].is_same(given[0])) given[0].copy_(results[0]);  // of integers
  }
  reduce_small();
}

}  // namespace

void exchange_on_host(at::TensorList xs, const at::Tensor& order, c10::string_view what,
                      c10::string_view reduction, double scale, at::IntArrayRef dims,
                      at::IntArrayRef members, int64_t size, at::TensorList out) {
  if (what == "all_reduce") {
    const Exchange exchange(what, reduction, xs, members, size);
    all_reduce_into(xs, reduction, scale, exchange, out);
  } else {
    const Tensors results = results_of(xs, what, reduction, scale, dims, members, size);
    for (size_t i = 0; i < results.size(); ++i) out[i].copy_(results[i]);
  }
  out.back().copy_(order.add(1));
}

namespace {

TORCH_LIBRARY_FRAGMENT(torch_xla, m) {
  const std::string arguments =
      "(Tensor[] tensors, Tensor order, str what, str reduction, float scale, int[] dims, "
      "int[] members, int size";
  // Programs name the first and run the second.
  m.def(("exchange_on_host" + arguments + ") -> Tensor[]").c_str());
  m.def(("exchange_on_host.out" + arguments + ", *, Tensor(a!)[] out) -> ()").c_str());
}
TORCH_LIBRARY_IMPL(torch_xla, CPU, m) { m.impl("exchange_on_host.out", exchange_on_host); }
const cpu::WaitingOperator waits("torch_xla::exchange_on_host");

}  // namespace

c10::intrusive_ptr<c10d::Work> begin_receive(const at::Tensor& bytes, int64_t place, int64_t tag,
                                             at::IntArrayRef members) {
  Tensors given = {bytes};
  return replica_group(members, std::ssize(members))
      .backend->recv(given, static_cast<int>(place), static_cast<int>(tag));
}

void finish_sends() { finish_sends_but(0); }

}  // namespace torch_xla::dispatch
