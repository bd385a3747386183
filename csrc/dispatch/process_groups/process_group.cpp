#include "dispatch/process_groups/process_group.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include "dispatch/process_groups/recorded_work.h"
#include "dispatch/replicas/apart.h"
#include "dispatch/replicas/exchange.h"
#include "dispatch/replicas/order.h"
#include "executor/run/runtime.h"
#include "executor/step/sync.h"
#include "lazy/device.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

using at::Tensor;
using c10d::OpType;
using c10d::ReduceOp;
using Tensors = std::vector<Tensor>;
using TensorLists = std::vector<Tensors>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// --- reductions -----------------------------------------------------------------------------

bool is_integral(const Tensor& x) { return c10::isIntegralType(x.scalar_type(), false); }

// StableHLO's name. Booleans are added and multiplied as `or` and `and`.
std::string_view reduction_of(const ReduceOp& op, const Tensor& x) {
  const bool is_bool = x.scalar_type() == at::kBool;
  const auto bits = [&](std::string_view name) {
    TXLA_CHECK_KIND(util::ErrorKind::Type, is_bool || is_integral(x),
                    "ReduceOp: expected integers or booleans for ", name, ", got ",
                    c10::toString(x.scalar_type()), ".");
    return name;
  };
  switch (op.op_) {
    case ReduceOp::SUM:
    case ReduceOp::AVG:
    case ReduceOp::PREMUL_SUM:
      return is_bool ? "or" : "add";
    case ReduceOp::PRODUCT:
      return is_bool ? "and" : "multiply";
    case ReduceOp::MIN:
      return is_bool ? "and" : "minimum";
    case ReduceOp::MAX:
      return is_bool ? "or" : "maximum";
    case ReduceOp::BAND:
      return bits("and");
    case ReduceOp::BOR:
      return bits("or");
    case ReduceOp::BXOR:
      return bits("xor");
    default:
      util::fail(util::ErrorKind::Value,
                 "ReduceOp: expected SUM, AVG, PRODUCT, MIN, MAX, BAND, "
                 "BOR, BXOR or PREMUL_SUM, got another one.");
  }
}

// Returns the tensor that is reduced in place of `x`.
Tensor before(const ReduceOp& op, const Tensor& x) {
  if (op.op_ != ReduceOp::PREMUL_SUM) return x;
  const auto* by = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
  TXLA_CHECK_KIND(util::ErrorKind::Value, by != nullptr,
                  "ReduceOp.PREMUL_SUM: expected a factor, got none. Use _make_nccl_premul_sum.");
  const Tensor& factor = by->tensor_factor;
  const Tensor product = factor.defined() ? x.mul(factor.to(x.device())) : x.mul(by->double_factor);
  return product.to(x.scalar_type());
}

// The factor of an average, where numbers have fractions.
double scale_of(const ReduceOp& op, const Tensor& x, int64_t size) {
  return op.op_ == ReduceOp::AVG && !is_integral(x) ? 1.0 / static_cast<double>(size) : 1;
}

Tensor after(const ReduceOp& op, const Tensor& x, int64_t size) {
  return op.op_ == ReduceOp::AVG && is_integral(x) ? at::div(x, size, "trunc") : x;
}

// --- tensors --------------------------------------------------------------------------------

bool is_on_host(const Tensors& xs) { return !xs.empty() && xs[0].device().is_cpu(); }

// The same of what is given and what is written.
bool are_on_host(const Tensors& to, const Tensors& xs) {
  TXLA_CHECK_KIND(util::ErrorKind::Value,
                  to.empty() || xs.empty() || is_on_host(to) == is_on_host(xs),
                  "torch.distributed: expected all tensors of a call on xla, or on the CPU, got ",
                  xs[0].device(), " and ", to[0].device(), ".");
  return is_on_host(xs) || is_on_host(to);
}

bool are_on_host(const TensorLists& to, const Tensors& xs) {
  return are_on_host(to.empty() ? Tensors() : to[0], xs);
}

void expect_on_xla(const char* who, at::TensorList xs) {
  for (const Tensor& x : xs) {
    TXLA_CHECK_KIND(util::ErrorKind::Value, x.device() == xs[0].device() && x.is_xla(), who,
                    ": expected tensors of one device of xla, got ", x.device(), " and ",
                    xs[0].device(), ".");
    TXLA_CHECK_KIND(util::ErrorKind::Type, x.scalar_type() == xs[0].scalar_type(), who,
                    ": expected tensors of one dtype, got ", c10::toString(xs[0].scalar_type()),
                    " and ", c10::toString(x.scalar_type()), ".");
  }
}

const Tensor& only(const char* who, const Tensors& xs) {
  TXLA_CHECK_KIND(util::ErrorKind::Value, xs.size() == 1, who, ": expected one tensor, got ",
                  xs.size(), ".");
  return xs[0];
}

void expect_count(const char* who, const Tensors& xs, int64_t count) {
  TXLA_CHECK_KIND(util::ErrorKind::Value, std::ssize(xs) == count, who, ": expected ", count,
                  " tensors, one of each member of the group, got ", xs.size(), ".");
}

bool have_equal_sizes(const Tensors& xs) {
  return std::ranges::all_of(xs, [&](const Tensor& x) { return x.sizes() == xs[0].sizes(); });
}

int64_t most_elements(const Tensors& xs) {
  int64_t most = 0;
  for (const Tensor& x : xs) most = std::max(most, x.numel());
  return most;
}

Tensor padded(const Tensor& x, int64_t length) {
  const Tensor flat = x.reshape(-1);
  return x.numel() == length ? flat : at::constant_pad_nd(flat, {0, length - x.numel()});
}

// Writes values into the tensors that were given. They may be views of others, as buckets are.
void write_into(const Tensor& to, const Tensor& value) { to.copy_(value.reshape(to.sizes())); }

void write_into(const Tensors& to, const Tensors& values) {
  for (size_t i = 0; i < to.size(); ++i) write_into(to[i], values[i]);
}

// A part for each, in the first elements of the rows of `rows`.
void write_rows(const Tensors& to, const Tensor& rows) {
  const Tensor flat = rows.reshape({std::ssize(to), -1});
  for (size_t i = 0; i < to.size(); ++i) {
    const Tensor row = flat.select(0, static_cast<int64_t>(i));
    write_into(to[i], row.numel() == to[i].numel() ? row : row.narrow(0, 0, to[i].numel()));
  }
}

// The tensors as rows, each as long as the longest.
Tensor rows_of(const Tensors& xs) {
  if (have_equal_sizes(xs)) return at::stack(xs);
  const int64_t length = most_elements(xs);
  Tensors rows;
  for (const Tensor& x : xs) rows.push_back(padded(x, length));
  return at::stack(rows);
}

// Sizes where `parts` of `part` lie one after the other in `whole`; the first dimension is theirs.
Tensor in_parts(const char* who, const Tensor& whole, const Tensor& part, int64_t parts) {
  TXLA_CHECK_KIND(util::ErrorKind::Value, whole.numel() == part.numel() * parts, who, ": expected ",
                  parts, " times as many elements as ", part.sizes(), ", got ", whole.sizes(), ".");
  const bool is_along_first = part.dim() == whole.dim() && part.dim() > 0 &&
                              whole.sizes().slice(1) == part.sizes().slice(1);
  return is_along_first ? whole : whole.reshape({parts * part.numel()});
}

Tensor as_part(const Tensor& whole, const Tensor& part) {
  return whole.dim() == part.dim() ? part : part.reshape(-1);
}

// --- the backend ----------------------------------------------------------------------------

struct OfTorchDistributed {
  const at::AutoDispatchBelowADInplaceOrView below;
  const ExchangesApart apart;
};

class XlaBackend final : public c10d::Backend {
 public:
  XlaBackend(c10::intrusive_ptr<c10d::Backend> host, std::vector<int64_t> members,
             std::chrono::milliseconds timeout)
      : Backend(host->getRank(), host->getSize()),
        host_(std::move(host)),
        members_(std::move(members)),
        options_(c10::make_intrusive<Options>("xla", timeout)) {
    for (const int64_t member : members_) {
      options_->global_ranks_in_group.push_back(static_cast<uint64_t>(member));
    }
  }

  const std::string getBackendName() const override { return "xla"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override {
    options_->timeout = timeout;
    host_->setTimeout(timeout);
  }
  // Calls are recorded one by one and sent when they run; there is nothing to start or end.
  void startCoalescing() override {}
  WorkPtr endCoalescing() override { return done(OpType::COALESCED, {}); }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return calls_; }
  c10d::ErrorType getError() override { return c10d::ErrorType::SUCCESS; }
  void abort() override { host_->abort(); }
  void shutdown() override {
    finish_recorded("torch.distributed.destroy_process_group");
    host_->shutdown();
  }

  WorkPtr allreduce(Tensors& xs, const c10d::AllreduceOptions& options) override {
    if (is_on_host(xs)) return host().allreduce(xs, options);
    return reduce_in_place("all_reduce", OpType::ALLREDUCE, xs, options.reduceOp);
  }

  WorkPtr allreduce_coalesced(Tensors& xs,
                              const c10d::AllreduceCoalescedOptions& options) override {
    if (is_on_host(xs)) return host().allreduce_coalesced(xs, options);
    return reduce_in_place("all_reduce_coalesced", OpType::ALLREDUCE_COALESCED, xs,
                           options.reduceOp);
  }

  // All members compute the result, so that they have one program.
  WorkPtr reduce(Tensors& xs, const c10d::ReduceOptions& options) override {
    if (is_on_host(xs)) return host().reduce(xs, options);
    const OfTorchDistributed call;
    const Tensor& x = only("reduce", xs);
    const Tensors results = reduced("reduce", xs, options.reduceOp);
    if (rank_ == options.rootRank) write_into(x, results[0]);
    return done(OpType::REDUCE, xs);
  }

  WorkPtr broadcast(Tensors& xs, const c10d::BroadcastOptions& options) override {
    if (is_on_host(xs)) return host().broadcast(xs, options);
    const OfTorchDistributed call;
    expect_on_xla("broadcast", xs);
    write_into(xs, collective_broadcast(xs, options.rootRank, members_, size_));
    return done(OpType::BROADCAST, xs);
  }

  WorkPtr allgather(TensorLists& to, Tensors& xs, const c10d::AllgatherOptions& options) override {
    if (are_on_host(to, xs)) return host().allgather(to, xs, options);
    const OfTorchDistributed call;
    const Tensor& x = only("all_gather", xs);
    TXLA_CHECK_KIND(util::ErrorKind::Value, to.size() == 1,
                    "all_gather: expected one list of results, got ", to.size(), ".");
    gather_into("all_gather", to[0], x);
    return done(OpType::ALLGATHER, to[0]);
  }

  WorkPtr allgather_coalesced(TensorLists& to, Tensors& xs,
                              const c10d::AllgatherOptions& options) override {
    if (are_on_host(to, xs)) return host().allgather_coalesced(to, xs, options);
    const OfTorchDistributed call;
    Tensors rows;
    for (const Tensor& x : xs) rows.push_back(x.unsqueeze(0));
    rows = all_gather(rows, 0, members_, size_);
    Tensors results;
    expect_count("all_gather_coalesced", rows.empty() ? Tensors() : to[0], std::ssize(xs));
    for (size_t member = 0; member < to.size(); ++member) {
      for (size_t i = 0; i < xs.size(); ++i) {
        write_into(to[member][i], rows[i].select(0, static_cast<int64_t>(member)));
        results.push_back(to[member][i]);
      }
    }
    return done(OpType::ALLGATHER_COALESCED, std::move(results));
  }

  WorkPtr _allgather_base(Tensor& to, Tensor& x, const c10d::AllgatherOptions& options) override {
    if (are_on_host(Tensors{to}, Tensors{x})) return host()._allgather_base(to, x, options);
    Tensors all_to = {to}, all = {x};
    return gather_tensors("all_gather_into_tensor", OpType::_ALLGATHER_BASE, all_to, all);
  }

  WorkPtr allgather_into_tensor_coalesced(Tensors& to, Tensors& xs,
                                          const c10d::AllgatherOptions& options) override {
    if (are_on_host(to, xs)) return host().allgather_into_tensor_coalesced(to, xs, options);
    return gather_tensors("all_gather_into_tensor_coalesced", OpType::ALLGATHER_COALESCED, to, xs);
  }

  // All members gather, so that they have one program.
  WorkPtr gather(TensorLists& to, Tensors& xs, const c10d::GatherOptions& options) override {
    if (are_on_host(to, xs)) return host().gather(to, xs, options);
    const OfTorchDistributed call;
    const Tensor& x = only("gather", xs);
    const Tensor rows = all_gather(x.unsqueeze(0), 0, members_, size_)[0];
    if (rank_ != options.rootRank) return done(OpType::GATHER, {});
    TXLA_CHECK_KIND(util::ErrorKind::Value, to.size() == 1,
                    "gather: expected one list of results, got ", to.size(), ".");
    expect_count("gather", to[0], size_);
    write_rows(to[0], rows);
    return done(OpType::GATHER, to[0]);
  }

  WorkPtr scatter(Tensors& to, TensorLists& xs, const c10d::ScatterOptions& options) override {
    if (are_on_host(xs, to)) return host().scatter(to, xs, options);
    const OfTorchDistributed call;
    const Tensor& out = only("scatter", to);
    const bool is_root = rank_ == options.rootRank;
    TXLA_CHECK_KIND(util::ErrorKind::Value, xs.size() == (is_root ? 1U : 0U),
                    "scatter: expected a list of tensors on the root alone, got ", xs.size(), ".");
    Tensor rows;
    if (is_root) {
      expect_count("scatter", xs[0], size_);
      expect_on_xla("scatter", xs[0]);
      rows = at::stack(xs[0]);
    } else {
      rows = at::zeros_like(out).unsqueeze(0).expand(shape_of_rows(out)).contiguous();
    }
    rows = collective_broadcast(rows, options.rootRank, members_, size_)[0];
    write_into(out, rows.select(0, rank_));
    return done(OpType::SCATTER, to);
  }

  WorkPtr reduce_scatter(Tensors& to, TensorLists& xs,
                         const c10d::ReduceScatterOptions& options) override {
    if (are_on_host(xs, to)) return host().reduce_scatter(to, xs, options);
    const OfTorchDistributed call;
    const Tensor& out = only("reduce_scatter", to);
    TXLA_CHECK_KIND(util::ErrorKind::Value, xs.size() == 1,
                    "reduce_scatter: expected one list of tensors, got ", xs.size(), ".");
    expect_count("reduce_scatter", xs[0], size_);
    expect_on_xla("reduce_scatter", xs[0]);
    const Tensor part = scattered("reduce_scatter", {rows_of(xs[0])}, options.reduceOp)[0];
    write_rows({out}, part);
    return done(OpType::REDUCE_SCATTER, to);
  }

  WorkPtr _reduce_scatter_base(Tensor& to, Tensor& x,
                               const c10d::ReduceScatterOptions& options) override {
    if (are_on_host(Tensors{to}, Tensors{x})) return host()._reduce_scatter_base(to, x, options);
    Tensors all_to = {to}, all = {x};
    return scatter_tensors("reduce_scatter_tensor", OpType::_REDUCE_SCATTER_BASE, all_to, all,
                           options.reduceOp);
  }

  WorkPtr reduce_scatter_tensor_coalesced(Tensors& to, Tensors& xs,
                                          const c10d::ReduceScatterOptions& options) override {
    if (are_on_host(to, xs)) return host().reduce_scatter_tensor_coalesced(to, xs, options);
    return scatter_tensors("reduce_scatter_tensor_coalesced",
                           OpType::REDUCE_SCATTER_TENSOR_COALESCED, to, xs, options.reduceOp);
  }

  WorkPtr alltoall_base(Tensor& to, Tensor& x, std::vector<int64_t>& to_sizes,
                        std::vector<int64_t>& x_sizes,
                        const c10d::AllToAllOptions& options) override {
    if (are_on_host(Tensors{to}, Tensors{x}))
      return host().alltoall_base(to, x, to_sizes, x_sizes, options);
    const OfTorchDistributed call;
    expect_on_xla("all_to_all_single", {to, x});
    const std::vector<int64_t> gets = split("all_to_all_single", to, to_sizes);
    const std::vector<int64_t> sends = split("all_to_all_single", x, x_sizes);
    const Tensor rows = x.dim() == 0 ? x.reshape(1) : x;
    const bool is_equal = to_sizes.empty() && x_sizes.empty();  // on every member, or on none
    write_into(to, is_equal ? all_to_all(rows, 0, 0, members_, size_)
                            : all_to_all_rows(rows, sends, gets, members_));
    return done(OpType::ALLTOALL_BASE, {to});
  }

  WorkPtr alltoall(Tensors& to, Tensors& xs, const c10d::AllToAllOptions& options) override {
    if (are_on_host(to, xs)) return host().alltoall(to, xs, options);
    const OfTorchDistributed call;
    expect_count("all_to_all", to, size_);
    expect_count("all_to_all", xs, size_);
    expect_on_xla("all_to_all", xs);
    // Others may have other sizes, so that all go this way.
    Tensors flat;
    std::vector<int64_t> sends, gets;
    for (const Tensor& x : xs) {
      flat.push_back(x.reshape(-1));
      sends.push_back(x.numel());
    }
    for (const Tensor& x : to) gets.push_back(x.numel());
    const Tensors parts =
        all_to_all_rows(at::cat(flat), sends, gets, members_).split_with_sizes(gets);
    write_into(to, parts);
    return done(OpType::ALLTOALL, to);
  }

  WorkPtr send(Tensors& xs, int to, int tag) override {
    if (is_on_host(xs)) return host().send(xs, to, tag);
    const OfTorchDistributed call;
    send_to(only("send", xs), to, tag, members_);
    return done(OpType::SEND, xs);
  }

  WorkPtr recv(Tensors& xs, int from, int tag) override {
    if (is_on_host(xs)) return host().recv(xs, from, tag);
    const OfTorchDistributed call;
    const Tensor& x = only("recv", xs);
    if (!exchanges_on_host()) {
      const Tensor bytes = at::empty({x.numel() * x.element_size()}, at::kByte);
      return c10::make_intrusive<ReceivingWork>(rank_, begin_receive(bytes, from, tag, members_),
                                                bytes, x);
    }
    write_into(x, receive_from(x, from, tag, members_));
    return done(OpType::RECV, xs);
  }

  WorkPtr recvAnysource(Tensors& xs, int tag) override {
    if (is_on_host(xs)) return host().recvAnysource(xs, tag);
    util::fail(
        util::ErrorKind::NotImplemented,
        "recv: expected a source for a tensor of xla, got none: who sends first is not known "
        "when the call is recorded. Name the source, or receive into a tensor of the CPU.");
  }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    finish_recorded("torch.distributed.barrier");
    c10d::BarrierOptions on_host = options;
    on_host.device_ids.clear();
    on_host.device = at::Device(at::kCPU);
    return host_->barrier(on_host);
  }

  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override {
    finish_recorded("torch.distributed.monitored_barrier");
    c10d::BarrierOptions on_host = options;
    on_host.device_ids.clear();
    host_->monitoredBarrier(on_host, wait_all_ranks);
  }

 private:
  WorkPtr done(OpType type, Tensors results) {
    ++calls_;
    return c10::make_intrusive<RecordedWork>(rank_, type, std::move(results));
  }

  Tensors reduced(const char* who, const Tensors& xs, const ReduceOp& op) {
    if (xs.empty()) return {};
    expect_on_xla(who, xs);
    Tensors given, results;
    for (const Tensor& x : xs) given.push_back(before(op, x));
    for (const Tensor& x :
         all_reduce(given, reduction_of(op, xs[0]), scale_of(op, xs[0], size_), members_, size_)) {
      results.push_back(after(op, x, size_));
    }
    return results;
  }

  // `xs` begin with a dimension that the members share.
  Tensors scattered(const char* who, const Tensors& xs, const ReduceOp& op) {
    if (xs.empty()) return {};
    expect_on_xla(who, xs);
    Tensors given, results;
    for (const Tensor& x : xs) given.push_back(before(op, x));
    for (const Tensor& x : torch_xla::dispatch::reduce_scatter(
             given, reduction_of(op, xs[0]), scale_of(op, xs[0], size_), 0, members_, size_)) {
      results.push_back(after(op, x, size_));
    }
    return results;
  }

  WorkPtr reduce_in_place(const char* who, OpType type, Tensors& xs, const ReduceOp& op) {
    const OfTorchDistributed call;
    write_into(xs, reduced(who, xs, op));
    return done(type, xs);
  }

  void gather_into(const char* who, const Tensors& to, const Tensor& x) {
    expect_count(who, to, size_);
    expect_on_xla(who, to);
    expect_on_xla(who, {to[0], x});
    const Tensor& own = to[static_cast<size_t>(rank_)];
    TXLA_CHECK_KIND(util::ErrorKind::Value, own.numel() == x.numel(), who,
                    ": expected a result of as many elements as the input of this rank, ",
                    x.numel(), ", got ", own.numel(), ".");
    const Tensor row = have_equal_sizes(to) ? x : padded(x, most_elements(to));
    write_rows(to, all_gather(row.unsqueeze(0), 0, members_, size_)[0]);
  }

  WorkPtr gather_tensors(const char* who, OpType type, Tensors& to, Tensors& xs) {
    const OfTorchDistributed call;
    expect_count(who, to, std::ssize(xs));
    expect_on_xla(who, xs);
    Tensors given;
    for (size_t i = 0; i < xs.size(); ++i) {
      given.push_back(as_part(in_parts(who, to[i], xs[i], size_), xs[i]));
    }
    write_into(to, all_gather(given, 0, members_, size_));
    return done(type, to);
  }

  WorkPtr scatter_tensors(const char* who, OpType type, Tensors& to, Tensors& xs,
                          const ReduceOp& op) {
    const OfTorchDistributed call;
    expect_count(who, to, std::ssize(xs));
    Tensors given;
    for (size_t i = 0; i < xs.size(); ++i) given.push_back(in_parts(who, xs[i], to[i], size_));
    write_into(to, scattered(who, given, op));
    return done(type, to);
  }

  std::vector<int64_t> shape_of_rows(const Tensor& x) const {
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.insert(sizes.begin(), size_);
    return sizes;
  }

  // The rows that each member has of a tensor; as many as the others where nothing is said.
  std::vector<int64_t> split(const char* who, const Tensor& x,
                             const std::vector<int64_t>& given) const {
    const int64_t rows = x.dim() == 0 ? x.numel() : x.size(0);
    if (given.empty()) {
      TXLA_CHECK_KIND(util::ErrorKind::Value, rows % size_ == 0, who, ": expected rows that the ",
                      size_, " members of the group divide, got ", rows, ".");
      return std::vector<int64_t>(static_cast<size_t>(size_), rows / size_);
    }
    const int64_t sum = std::accumulate(given.begin(), given.end(), int64_t{0});
    TXLA_CHECK_KIND(util::ErrorKind::Value, std::ssize(given) == size_ && sum == rows, who,
                    ": expected ", size_, " sizes with the sum ", rows, ", got ",
                    at::IntArrayRef(given), ".");
    return given;
  }

  // The backend for the CPU, whose calls wait for the other members.
  c10d::Backend& host() {
    launch_exchanges();
    return *host_;
  }

  // Launches what was recorded on the devices of this process, and waits for it.
  static void finish_recorded(std::string_view cause) {
    executor::Runtime* runtime = executor::Runtime::get_if_made();
    const int count = runtime == nullptr ? 1 : runtime->device_count();
    for (int device = 0; device < count; ++device) {
      if (runtime == nullptr && lazy::Device::of(device).live_storages.load() == 0) continue;
      executor::sync_device(device, true, {.of_run = cause, .is_barrier = true});
    }
    finish_sends();
  }

  const c10::intrusive_ptr<c10d::Backend> host_;
  const std::vector<int64_t> members_;
  const c10::intrusive_ptr<Options> options_;
  std::atomic<uint64_t> calls_ = 0;
};

}  // namespace

c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(
    const c10::intrusive_ptr<c10d::ProcessGroup>& host, std::vector<int64_t> members,
    std::chrono::milliseconds timeout) {
  TXLA_CHECK_KIND(util::ErrorKind::Value, host->getSize() == std::ssize(members),
                  "process group: expected ", host->getSize(), " ranks, got ", members.size(), ".");
  c10::intrusive_ptr<c10d::Backend> backend = c10::make_intrusive<XlaBackend>(
      host->getBackend(c10::DeviceType::CPU), std::move(members), timeout);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(host->getRank(), host->getSize());
  for (const c10::DeviceType type : {c10::DeviceType::XLA, c10::DeviceType::CPU}) {
    group->setBackend(type, c10d::ProcessGroup::CUSTOM, backend);
  }
  return group;
}

}  // namespace torch_xla::dispatch
