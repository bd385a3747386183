#include "dispatch/record/fallback.h"

#include <atomic>
#include <mutex>
#include <unordered_set>

#include <ATen/CPUGeneratorImpl.h>

#include "debug/metrics.h"
#include "debug/waits.h"
#include "dispatch/calls/call.h"
#include "dispatch/calls/computed_views.h"
#include "dispatch/calls/substitute.h"
#include "dispatch/device/generator.h"
#include "dispatch/record/context.h"
#include "dispatch/views/resize.h"
#include "executor/run/runtime.h"
#include "executor/run/transfer.h"
#include "executor/step/external_memory.h"
#include "executor/step/read_data.h"
#include "executor/step/sync.h"
#include "lazy/recording.h"
#include "lazy/source.h"
#include "util/error.h"
#include "util/flags.h"
#include "util/lock_order.h"

namespace torch_xla::dispatch {

using torch::jit::Stack;

namespace {

std::atomic<bool> reads_views_by_programs{false};

// Returns whether a view is cut on the host out of what its storage holds, which needs no program
// for each place and shape: where memory is the host's, or where little is sent for nothing.
bool is_cut_on_host(lazy::TensorImpl& impl) {
  constexpr size_t kLittle = 1 << 16;  // bytes
  if (!impl.view().defined() || reads_views_by_programs || !shows_memory(impl)) return false;
  return impl.lazy_storage().nbytes() <= kLittle || executor::Runtime::get().device_type() == "CPU";
}

}  // namespace

void set_reads_views_by_programs(bool on) { reads_views_by_programs = on; }

std::vector<at::Tensor> fetch(const std::vector<at::Tensor>& tensors, std::string_view why) {
  const debug::WaitScope waits(why);
  std::vector<at::Tensor> results(tensors.size());
  // One run and one batch of copies per device.
  std::vector<bool> done(tensors.size(), false);
  for (size_t first = 0; first < tensors.size(); ++first) {
    if (done[first]) continue;
    lazy::TensorImpl* head = lazy::as_lazy(tensors[first]);
    TXLA_CHECK(head != nullptr, "xla: expected an xla tensor, got one on ",
               tensors[first].device().str(), ".");
    const int device = head->device_index();
    std::vector<size_t> whole, cut;
    {
      const lazy::GraphLock lock;
      for (size_t i = first; i < tensors.size(); ++i) {
        lazy::TensorImpl* impl = lazy::as_lazy(tensors[i]);
        if (done[i] || impl == nullptr || impl->device_index() != device) continue;
        done[i] = true;
        (is_cut_on_host(*impl) ? cut : whole).push_back(i);
      }
    }
    std::vector<lazy::Value> of_views;
    const auto current = [&] {
      std::vector<lazy::Value> values;
      of_views.clear();
      for (const size_t i : whole) {
        lazy::TensorImpl* impl = lazy::as_lazy(tensors[i]);
        values.push_back(impl->read());
        of_views.push_back(impl->view().defined() ? values.back() : lazy::Value());
      }
      for (const size_t i : cut) {
        values.push_back(lazy::as_lazy(tensors[i])->lazy_storage().value());
      }
      return values;
    };
    std::vector<lazy::Value> values = executor::materialize(current, device);
    std::vector<lazy::Value> to_cut(values.begin() + static_cast<std::ptrdiff_t>(whole.size()),
                                    values.end());
    values.resize(whole.size());
    std::vector<at::Tensor> fetched = executor::read_data(values, device);
    for (size_t k = 0; k < cut.size(); ++k) {
      const at::Tensor& t = tensors[cut[k]];
      results[cut[k]] = executor::on_host(to_cut[k], device)
                            .as_strided(t.sizes(), t.strides(), t.storage_offset())
                            .clone(at::MemoryFormat::Contiguous);
    }
    const lazy::GraphLock lock;
    for (size_t k = 0; k < whole.size(); ++k) {
      // A storage has its data by now.
      if (of_views[k]) lazy::as_lazy(tensors[whole[k]])->computed(of_views[k], values[k]);
      results[whole[k]] = std::move(fetched[k]);
    }
  }
  return results;
}

at::Tensor to_device(const at::Tensor& cpu, int device) {
  lazy::Value value = executor::upload(cpu, device);
  const lazy::Geometry* g = lazy::intern(cpu.scalar_type(), cpu.sizes(), cpu.strides());
  // Strides survive where they describe dense memory; others become row-major.
  if (g->storage_elements() != g->numel)
    g = lazy::intern_contiguous(cpu.scalar_type(), cpu.sizes());
  return lazy::make_tensor(std::move(value), g, device);
}

namespace {

// The arguments of a call on the host, and the way back for those that it writes.
class FallbackCall {
 public:
  FallbackCall(const c10::OperatorHandle& op, Stack* stack) : op_(op), stack_(stack) {
    const size_t count = op.schema().arguments().size();
    base_ = stack->size() - count;
    original_.assign(stack->begin() + static_cast<std::ptrdiff_t>(base_), stack->end());
  }

  void run() {
    gather();
    c10::Stack cpu = replaced_;
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &cpu);
    write_back();
    torch::jit::drop(*stack_, original_.size());
    const auto& returns = op_.schema().returns();
    for (size_t i = 0; i < returns.size(); ++i) push_result(cpu[i], returns[i]);
  }

 private:
  void collect(const at::Tensor& t) {
    if (t.defined() && lazy::is_lazy(t)) {
      lazy_.push_back(t);
      device_ = lazy::as_lazy(t)->device_index();
    }
  }

  void gather() {
    for (const c10::IValue& v : original_) {
      if (v.isTensor()) {
        collect(v.toTensor());
      } else if (v.isTensorList() || v.isOptionalTensorList()) {
        for (const c10::IValue& e : v.toListRef()) {
          if (e.isTensor()) collect(e.toTensor());
        }
      } else if (v.isDevice() && v.toDevice().type() == at::kXLA) {
        device_ = current_device_or(v.toDevice());
      }
    }
    if (device_ < 0) device_ = current_device();
    host_ = fetch(lazy_, op_.schema().name());
    size_t next = 0;
    const auto swap = [&](const at::Tensor& t) {
      return t.defined() && lazy::is_lazy(t) ? host_[next++] : t;
    };
    for (const c10::IValue& v : original_) {
      if (v.isGenerator()) {
        replaced_.emplace_back(at::detail::createCPUGenerator(draw_seed(v.toGenerator(), device_)));
      } else {
        replaced_.push_back(substitute(v, at::kCPU, swap));
      }
    }
  }

  // Each written argument takes what its copy on the host now holds.
  void write_back() {
    const auto& arguments = op_.schema().arguments();
    size_t next = 0;
    const auto visit = [&](const at::Tensor& t, bool written) {
      if (!t.defined() || !lazy::is_lazy(t)) return;
      const at::Tensor& host = host_[next++];
      if (!written) return;
      const lazy::GraphLock lock;
      lazy::TensorImpl* impl = lazy::as_lazy(t);
      if (host.sizes() != t.sizes()) {
        resize(*impl, lazy::intern_contiguous(host.scalar_type(), host.sizes()));
      }
      write(*impl, executor::upload(host, device_));
    };
    for (size_t i = 0; i < original_.size(); ++i) {
      const c10::IValue& v = original_[i];
      const bool written =
          arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite();
      if (v.isTensor()) {
        visit(v.toTensor(), written);
      } else if (v.isTensorList() || v.isOptionalTensorList()) {
        for (const c10::IValue& e : v.toListRef()) {
          if (e.isTensor()) visit(e.toTensor(), written);
        }
      }
    }
  }

  at::Tensor result_tensor(const at::Tensor& t) {
    const bool dense = !t.defined() || (t.layout() == at::kStrided && !t.is_quantized());
    TXLA_CHECK_KIND(util::ErrorKind::NotImplemented, dense, lazy::full_name(op_.operator_name()),
                    ": expected a result that a tensor of xla can be, dense and of numbers, got "
                    "one of layout ",
                    t.layout(), " and dtype ", t.scalar_type(), ". Call it on tensor.cpu().");
    return t.defined() && t.is_cpu() ? to_device(t, device_) : t;
  }

  void push_result(const c10::IValue& v, const c10::Argument& info) {
    if (info.alias_info() != nullptr && info.alias_info()->isWrite()) {
      // The written argument itself is what the caller gets.
      const auto& arguments = op_.schema().arguments();
      for (size_t i = 0; i < arguments.size(); ++i) {
        if (arguments[i].alias_info() != nullptr &&
            *arguments[i].alias_info() == *info.alias_info()) {
          stack_->push_back(original_[i]);
          return;
        }
      }
    }
    if (v.isTensor()) {
      stack_->emplace_back(result_tensor(v.toTensor()));
    } else if (v.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const c10::IValue& e : v.toListRef()) list.push_back(result_tensor(e.toTensor()));
      stack_->emplace_back(std::move(list));
    } else {
      stack_->push_back(v);
    }
  }

  const c10::OperatorHandle& op_;
  Stack* stack_;
  size_t base_ = 0;
  int device_ = -1;
  Stack original_;
  Stack replaced_;
  std::vector<at::Tensor> lazy_;
  std::vector<at::Tensor> host_;
};

void refuse_collective(const c10::OperatorHandle& op) {
  if (op.operator_name().getNamespace() == "c10d") fail_collective(op.operator_name().name);
}

// XLA_HOST_FALLBACK, for this operator.
void check_fallback(const std::string& name) {
  const std::string mode = util::flag::XLA_HOST_FALLBACK();
  if (mode == "allow") return;
  const std::string what = name +
                           ": runs on the host, its inputs fetched and its results uploaded by "
                           "each call, since no program can hold it";
  if (mode == "error") {
    util::fail(util::ErrorKind::NotImplemented, what,
               ". Allow it with torch_xla.experimental.host_fallback('allow').");
  }
  TXLA_CHECK_KIND(util::ErrorKind::Value, mode == "warn",
                  "XLA_HOST_FALLBACK: expected allow, warn or error, got '", mode, "'.");
  static util::Mutex mutex;
  static auto& warned = *new std::unordered_set<std::string>;
  {
    const std::lock_guard lock(mutex);
    if (!warned.insert(name).second) return;
  }
  // Calls through torch.ops warn on stderr, without a line of Python.
  const std::string line = lazy::source_line();
  TORCH_WARN(what, line.empty() ? "" : ", here at " + line,
             ". This is said once per operator; torch_xla.experimental.host_fallback('error')"
             " raises instead.");
}

}  // namespace

void host_fallback(const c10::OperatorHandle& op, Stack* stack) {
  const std::string name = lazy::full_name(op.operator_name());
  TXLA_CHECK(lazy::Recording::current() == nullptr, name,
             ": runs on the host, which a recorded function cannot.");
  refuse_collective(op);
  check_fallback(name);
  debug::counter(op.schema().name())->add();
  const debug::WaitScope scope(op.schema().name());
  FallbackCall(op, stack).run();
}

namespace {

// The device of the call's tensors, or -1 where none is on xla.
int device_of(const Stack& stack, size_t base) {
  int device = -1;
  for (size_t i = base; i < stack.size(); ++i) {
    if (!stack[i].isTensor() || !stack[i].toTensor().defined()) continue;
    if (lazy::TensorImpl* impl = lazy::as_lazy(stack[i].toTensor())) device = impl->device_index();
  }
  return device;
}

}  // namespace

void upload_index_or_fail(const c10::OperatorHandle& op, Stack& stack, size_t base, int argument,
                          const at::Tensor& tensor) {
  const c10::IValue& v = stack[base + argument];
  if (!v.isOptionalTensorList()) fail_of_cpu_tensor(op, stack, base, argument, tensor);
  const int found = device_of(stack, base), device = found < 0 ? current_device() : found;
  c10::List<std::optional<at::Tensor>> list;
  for (const c10::IValue& e : v.toListRef()) {
    if (e.isNone()) {
      list.push_back(std::optional<at::Tensor>());
    } else {
      const at::Tensor t = e.toTensor();
      list.push_back(t.defined() && t.is_cpu() ? to_device(t, device) : t);
    }
  }
  stack[base + argument] = std::move(list);
}

void fail_of_cpu_tensor(const c10::OperatorHandle& op, const Stack& stack, size_t base,
                        int argument, const at::Tensor& tensor) {
  const int device = device_of(stack, base);
  const std::string other = device < 0 ? "" : "xla:" + std::to_string(device);
  for (size_t i = base; i < stack.size() && other.empty(); ++i) {
    // An xla generator brings a call of CPU tensors here.
    TORCH_CHECK(!stack[i].isGenerator(),
                "Expected a 'cpu' device type for generator but found 'xla'");
  }
  util::fail(util::ErrorKind::Runtime, "Expected all tensors to be on the same device, but got ",
             op.schema().arguments()[argument].name(),
             " is on cpu, different from other tensors on ", other.empty() ? "xla" : other,
             " (when checking argument in method ", lazy::full_name(op.operator_name()),
             "). Input tensor is not an XLA tensor: torch.", c10::toString(tensor.scalar_type()),
             "Tensor. Move it with .to('xla').");
}

void fail_collective(const std::string& name) {
  util::fail(
      util::ErrorKind::NotImplemented, name, ": expected tensors of the CPU, got some on xla. ",
      executor::is_spmd()
          ? "In SPMD mode one process has all devices, and the compiler sends what they need "
            "of each other: split values by torch_xla.distributed.spmd.mark_sharding."
          : "Move them with .cpu().");
}

}  // namespace torch_xla::dispatch
