// Exchanges in programs of their own, where the plugin exchanges: it wants one program of all
// replicas, and those of torch.distributed may compute what they like around an exchange.
#pragma once

#include <utility>

namespace torch_xla::dispatch {

// While it lives, so are the exchanges that the calling thread records.
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
