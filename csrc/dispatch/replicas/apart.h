// Exchanges apart from what replicas compute around them, where the plugin exchanges: it wants one
// program of all replicas, and those of torch.distributed may compute what they like.
#pragma once

#include <cstdint>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Work;
}

namespace torch_xla::dispatch {

// Returns whether programs call the host for exchanges; else the plugin exchanges.
bool exchanges_on_host();

// Begins to receive what another member sends by send_to, as bytes of the CPU's memory.
c10::intrusive_ptr<c10d::Work> begin_receive(const at::Tensor& bytes, int64_t place, int64_t tag,
                                             at::IntArrayRef members);

// While it lives, the exchanges that the calling thread records are programs of their own.
class ExchangesApart {
 public:
  ExchangesApart() : before_(std::exchange(wanted_, true)) {}
  ~ExchangesApart() { wanted_ = before_; }
  ExchangesApart(const ExchangesApart&) = delete;
  ExchangesApart& operator=(const ExchangesApart&) = delete;

  static bool wanted() { return wanted_; }

 private:
  static inline thread_local bool wanted_ = false;
  const bool before_;
};

}  // namespace torch_xla::dispatch
