#include "executor/run/transfer.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <sys/mman.h>

#include "debug/metrics.h"
#include "debug/trace.h"
#include "executor/run/array_types.h"
#include "executor/run/in_flight.h"
#include "executor/run/live_data.h"
#include "executor/run/runtime.h"
#include "lazy/function.h"
#include "lazy/lock.h"
#include "ops/dtypes.h"
#include "ops/factory.h"
#include "ops/manual_sharding.h"
#include "ops/sharding_constraint.h"
#include "ops/target.h"
#include "spmd/place.h"
#include "util/error.h"
#include "util/lock_order.h"
#include "util/unlocked.h"

namespace torch_xla::executor {
namespace {

const debug::Metric& outbound_bytes() {
  static const debug::Metric bytes("OutboundData", debug::Unit::Bytes);
  return bytes;
}

// `dense` stays as it is from now on.
pjrt::Array array_on_host(const at::Tensor& dense, const spmd::Sharding* sharding) {
  const auto kept = std::make_shared<const at::Tensor>(dense);
  const void* data = dense.numel() == 0 ? kept.get() : dense.const_data_ptr();  // never null
  return pjrt::Array::on_host(Runtime::get().client(), std::shared_ptr<const void>(kept, data),
                              to_pjrt(dense.scalar_type()), dense.sizes(), sharding);
}

}  // namespace

lazy::DeviceData keep_on_host(const at::Tensor& tensor, int device, const lazy::Source* maker) {
  const at::Tensor dense = tensor.to(ops::device_dtype(tensor.scalar_type())).contiguous();
  return counted(array_on_host(dense, nullptr), device, maker);
}

lazy::Value upload(const at::Tensor& tensor, int device, const spmd::Sharding* sharding) {
  static const debug::Metric time("TransferToDeviceTime"), of_tensor("TensorToData"),
      of_value("IrValueTensorToXlaData");  // one way here
  const debug::TimedScope scope(time), tensor_scope(of_tensor), value_scope(of_value);
  debug::Span span("upload");
  span.detail("bytes", [&] { return std::to_string(tensor.nbytes()); });
  at::Tensor dense = tensor.to(ops::device_dtype(tensor.scalar_type())).contiguous();
  Runtime& runtime = Runtime::get();
  const pjrt::Devices& devices = runtime.devices(device);
  std::optional<pjrt::Array> array;
  try {
    if (devices.all.size() > 1) {
      if (dense.is_alias_of(tensor)) dense = dense.clone();
      array = array_on_host(dense, held_sharding(sharding, dense.sizes()));
      if (array->sharding() != nullptr) send(*array, devices);
    } else {
      outbound_bytes().add(static_cast<double>(dense.nbytes()));
      array = pjrt::Array::from_host(runtime.client(), dense.const_data_ptr(),
                                     to_pjrt(dense.scalar_type()), dense.sizes(), devices.mine);
    }
  } catch (const pjrt::Error& e) {
    fail(e);
  }
  return data_value(lazy::intern_contiguous(tensor.scalar_type(), tensor.sizes()), device,
                    counted(std::move(*array), device));
}

lazy::Value upload_parts(const std::vector<at::Tensor>& parts, at::IntArrayRef sizes, int device,
                         const spmd::Sharding* sharding) {
  if (held_sharding(sharding, sizes) == nullptr) return upload(parts.at(0), device);
  Runtime& runtime = Runtime::get();
  const pjrt::Devices& devices = runtime.devices(device);
  std::optional<pjrt::Array> array;
  double bytes = 0;
  try {
    for (size_t i = 0; i < devices.mine.size(); ++i) {
      const at::Tensor& part = parts.at(i);
      const auto held = at::TensorOptions().dtype(ops::device_dtype(part.scalar_type()));
      const at::Tensor dense = at::zeros(part.sizes(), held.device(at::kCPU));
      at::Tensor to = dense, from = part;
      int64_t dim = 0;
      for (const auto [start, end] : spmd::place_of(*sharding, devices.positions[i], sizes)) {
        to = to.slice(dim, 0, end - start);
        from = from.slice(dim++, 0, end - start);
      }
      to.copy_(from);
      const auto sent = pjrt::Buffer::from_host(
          runtime.client(), dense.const_data_ptr(), to_pjrt(dense.scalar_type()), dense.sizes(),
          std::nullopt, pjrt::HostSemantics::ImmutableOnlyDuringCall, devices.mine[i]);
      bytes += static_cast<double>(dense.nbytes());
      if (array) {
        array->add(std::move(*sent));
      } else {
        array.emplace(std::move(*sent));
      }
    }
  } catch (const pjrt::Error& e) {
    fail(e);
  }
  outbound_bytes().add(bytes);
  array->set_sharding(sharding, sizes.vec());
  return data_value(lazy::intern_contiguous(parts[0].scalar_type(), sizes), device,
                    counted(std::move(*array), device));
}

void send(pjrt::Array& array, const pjrt::Devices& devices) {
  if (array.num_buffers() == devices.mine.size()) return;
  if (const size_t bytes = array.extend_to(devices)) {
    outbound_bytes().add(static_cast<double>(bytes));
  }
}

namespace {

const spmd::Sharding* known_sharding(const lazy::Node& node) {
  if (!node.is_data()) return ops::sharding_given_by(node.signature());
  const pjrt::Array* array = node.data().array.get();
  return array == nullptr ? nullptr : array->sharding();
}

// That of a value which waits for manual ones, or null.
const spmd::Sharding* pending_manual(const lazy::Value& value) {
  const lazy::GraphLock lock;
  const lazy::Walk waiting = lazy::walk_of({value});
  const lazy::Function function = lazy::function_of(waiting);
  ops::NamedShardings named;
  named.add(function);
  ops::ManualValues manual(function);
  for (size_t i = 0; i < waiting.parameters.size(); ++i) {
    const spmd::Sharding* s = known_sharding(*waiting.parameters[i]);
    if (s == nullptr || !s->is_manual) continue;
    manual.add_parameter(i);
    named.of_boundaries.push_back(s);
  }
  manual.add_results();
  if (!manual.contains(function.results[0])) return nullptr;
  return spmd::Sharding::manual(named.of_boundaries.at(0)->mesh, value.geometry().sizes.size());
}

}  // namespace

const spmd::Sharding* sharding_of(const lazy::Value& value) {
  const spmd::Sharding* known = known_sharding(*value.node);
  const bool waits = !value.node->is_data() && known == nullptr;
  return waits && spmd::Sharding::any_manual() ? pending_manual(value) : known;
}

void split_on_host(const lazy::Value& data, std::shared_ptr<const void> value,
                   const spmd::Sharding* sharding) {
  const lazy::GraphLock lock;
  pjrt::Array& array = *data.node->data().array;
  const std::vector<int64_t> sizes = array.dims();
  array = pjrt::Array::on_host(Runtime::get().client(), std::move(value), array.dtype(), sizes,
                               held_sharding(sharding, sizes));
}

namespace {

// Copies in flight, which write into memory of their caller's until they have ended.
class Copies {
 public:
  explicit Copies(size_t count) { events_.reserve(count); }
  ~Copies() {
    for (const pjrt::Event& event : events_) end(event);
  }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  void add(pjrt::Event event) { events_.push_back(std::move(event)); }
  // Waits for all, then throws what the first that failed did.
  void await() {
    for (const pjrt::Event& event : std::exchange(events_, {})) end(event);
    if (failure_ != nullptr) std::rethrow_exception(failure_);
  }

 private:
  void end(const pjrt::Event& event) noexcept {
    try {
      event.await();
    } catch (...) {
      if (failure_ == nullptr) failure_ = std::current_exception();
    }
  }

  std::vector<pjrt::Event> events_;
  std::exception_ptr failure_;
};

// CPU tensors with the contents of buffers, each of a geometry; all copies are in flight together.
std::vector<at::Tensor> read(
    const std::vector<std::pair<const pjrt::Buffer*, const lazy::Geometry*>>& buffers) {
  static const debug::Metric time("TransferFromDeviceTime");
  static const debug::Metric bytes("InboundData", debug::Unit::Bytes);
  const debug::TimedScope scope(time);
  debug::Span span("TransferFromDevice");
  std::vector<at::Tensor> tensors;
  for (const auto& [buffer, g] : buffers) {
    const at::ScalarType held = to_torch(buffer->dtype());
    tensors.push_back(at::empty(g->sizes, at::TensorOptions().dtype(held).device(at::kCPU)));
    bytes.add(static_cast<double>(tensors.back().nbytes()));
  }
  {
    const util::Unlocked unlocked;
    util::about_to_wait_for(util::Rank::Device);
    Copies copies(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor& t = tensors[i];
      if (t.numel() == 0) continue;
      copies.add(buffers[i].first->copy_to_host(t.mutable_data_ptr(), t.nbytes()));
    }
    copies.await();
  }
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i] = tensors[i].to(buffers[i].second->dtype);
  return tensors;
}

}  // namespace

namespace {

// Puts a value together of parts that one device each holds.
at::Tensor assemble(const spmd::Sharding& sharding, std::span<const int64_t> holders,
                    at::IntArrayRef sizes, std::span<const at::Tensor> parts) {
  at::Tensor whole = at::empty(sizes, parts[0].options());
  for (size_t i = 0; i < parts.size(); ++i) {
    at::Tensor place = whole, part = parts[i];
    int64_t dim = 0;
    for (const auto [start, end] : spmd::place_of(sharding, holders[i], sizes)) {
      place = place.slice(dim, start, end);
      part = part.slice(dim++, 0, end - start);
    }
    place.copy_(part);
  }
  return whole;
}

const std::vector<int64_t>& positions_of(const lazy::Value& data) {
  return Runtime::get().devices(data.node->device()).positions;
}

[[noreturn]] void fail_elsewhere(const pjrt::Array& array, const spmd::Sharding& sharding,
                                 size_t here) {
  const std::string line = line_of(array);
  util::fail(
      util::ErrorKind::Runtime,
      "to('cpu'): expected a value of which this process has all parts, got one of the sizes ",
      at::IntArrayRef(array.dims()), line.empty() ? "" : " of " + line, ", split as ",
      sharding.gspmd(), ", of which it has ", here, " of ", sharding.num_parts(),
      ". In all processes, call mark_sharding with a spec of None for each dimension and "
      "sync before, so that each device has the whole, or read XLAShardedTensor.local_shards.");
}

}  // namespace

bool has_all_parts(const lazy::Value& data) {
  const pjrt::Array& array = *data.node->data().array;
  const spmd::Sharding* s = array.sharding();
  if (s == nullptr || s->is_manual || array.num_buffers() == 0) return true;
  return spmd::holders_of(*s, positions_of(data)).size() == s->num_parts();
}

std::vector<at::Tensor> download_data(const std::vector<lazy::Value>& values) {
  for (const lazy::Value& value : values) {
    const spmd::Sharding* s = value.node->data().array->sharding();
    TXLA_CHECK_KIND(util::ErrorKind::Value, s == nullptr || !s->is_manual,
                    "to('cpu'): expected a tensor with one value, got a manual one, ",
                    "of the sizes ", at::IntArrayRef(value.geometry().sizes),
                    ", of which each device has its own. Use disable_manual_sharding first, or "
                    "read XLAShardedTensor.local_shards.");
  }
  using Buffers = std::vector<std::pair<const pjrt::Buffer*, const lazy::Geometry*>>;
  Buffers buffers;
  std::vector<std::shared_ptr<const void>> on_host(values.size());
  std::vector<std::vector<int64_t>> holders(values.size());  // of values that are split
  {
    const lazy::GraphLock lock;  // a run may send an array
    static const debug::Counter reads("ReplicateShardedData");
    for (size_t v = 0; v < values.size(); ++v) {
      const pjrt::Array& array = *values[v].node->data().array;
      if (array.loss() != nullptr) fail_lost(array);
      on_host[v] = array.host_data();
      if (on_host[v] != nullptr) continue;
      if (array.num_buffers() > 1) reads.add();
      if (array.sharding() == nullptr) {
        buffers.emplace_back(&array.whole(), &values[v].geometry());
        continue;
      }
      const spmd::Sharding& split = *array.sharding();
      const std::vector<int64_t>& mine = positions_of(values[v]);
      holders[v] = spmd::holders_of(split, mine);
      if (holders[v].size() != split.num_parts()) fail_elsewhere(array, split, holders[v].size());
      for (const int64_t d : holders[v]) {
        const auto place = std::ranges::lower_bound(mine, d) - mine.begin();
        const pjrt::Buffer& part = array.buffer(static_cast<size_t>(place));
        buffers.emplace_back(&part,
                             lazy::intern_contiguous(values[v].geometry().dtype, part.dims()));
      }
    }
  }
  std::vector<at::Tensor> read_parts;
  if (!buffers.empty()) read_parts = read(buffers);
  std::vector<at::Tensor> tensors;
  size_t next = 0;
  for (size_t v = 0; v < values.size(); ++v) {
    const pjrt::Array& array = *values[v].node->data().array;
    const lazy::Geometry& g = values[v].geometry();
    if (on_host[v] != nullptr) {
      const auto held = at::TensorOptions().dtype(held_dtype(array)).device(at::kCPU);
      const at::Tensor lent = at::from_blob(const_cast<void*>(on_host[v].get()), g.sizes, held);
      tensors.push_back(lent.to(g.dtype, /*non_blocking=*/false, /*copy=*/true));
      continue;
    }
    if (array.sharding() == nullptr) {
      tensors.push_back(read_parts[next++]);
      continue;
    }
    const size_t count = holders[v].size();
    tensors.push_back(assemble(*array.sharding(), holders[v], g.sizes,
                               std::span<const at::Tensor>(read_parts).subspan(next, count)));
    next += count;
  }
  return tensors;
}

std::vector<std::pair<pjrt::Device, at::Tensor>> download_shards_of_data(const lazy::Value& data,
                                                                         int device) {
  pjrt::Array& array = *data.node->data().array;
  std::vector<std::pair<const pjrt::Buffer*, const lazy::Geometry*>> buffers;
  {
    const lazy::GraphLock lock;  // a run may extend the array
    if (array.num_buffers() == 0) send(array, Runtime::get().devices(device));
    for (size_t i = 0; i < array.num_buffers(); ++i) {
      const pjrt::Buffer& buffer = array.buffer(i);
      const lazy::Geometry& g = data.geometry();
      const bool is_manual = array.sharding() != nullptr && array.sharding()->is_manual;
      buffers.emplace_back(&buffer,
                           lazy::intern_contiguous(g.dtype, is_manual ? g.sizes : buffer.dims()));
    }
  }
  const std::vector<at::Tensor> tensors = read(buffers);
  std::vector<std::pair<pjrt::Device, at::Tensor>> shards;
  for (size_t i = 0; i < tensors.size(); ++i) {
    shards.emplace_back(buffers[i].first->device(), tensors[i]);
  }
  return shards;
}

namespace {

constexpr size_t kWorthPages = 1 << 16;  // bytes: smaller arrays are made sooner than mapped

// Null where the kernel maps no more memory.
std::shared_ptr<const void> untouched_memory(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  return {memory, [bytes](const void* p) { munmap(const_cast<void*>(p), bytes); }};
}

size_t bytes_of(const lazy::Geometry& g) {
  return static_cast<size_t>(g.numel) * c10::elementSize(ops::device_dtype(g.dtype));
}

}  // namespace

std::vector<lazy::Value> materialize_zeros(std::vector<lazy::Value> constants, int device) {
  Runtime& runtime = Runtime::get();
  const pjrt::Devices& devices = runtime.devices(device);
  if (runtime.device_type() != "CPU" || devices.all.size() != 1) return constants;
  std::vector<lazy::Value> others;
  try {
    for (lazy::Value& v : constants) {
      lazy::Node& node = *v.node;
      const lazy::Geometry& g = v.geometry();
      const bool is_one = !node.is_data() && node.num_outputs() == 1 &&
                          ops::makes_zeros(*node.signature().op) && bytes_of(g) >= kWorthPages;
      const std::shared_ptr<const void> memory = is_one ? untouched_memory(bytes_of(g)) : nullptr;
      if (memory == nullptr) {
        others.push_back(std::move(v));
        continue;
      }
      std::unique_ptr<pjrt::Buffer> buffer = pjrt::Buffer::from_host(
          runtime.client(), memory.get(), to_pjrt(ops::device_dtype(g.dtype)), g.sizes,
          std::nullopt, pjrt::HostSemantics::ZeroCopy, devices.mine[0], [memory] { (void)memory; });
      node.become_data(counted(pjrt::Array(std::move(*buffer)), device, &node.source()));
    }
  } catch (const pjrt::Error& e) {
    fail(e);
  }
  return others;
}

}  // namespace torch_xla::executor
