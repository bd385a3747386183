// RecordedWork, which a call of torch.distributed gives for an exchange that was recorded. It is
// complete at once: who reads the results waits for them, as for those of any other call. And
// ReceivingWork, of what comes outside of programs.
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/jit_type.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace torch_xla::dispatch {

class RecordedWork final : public c10d::Work {
 public:
  RecordedWork(int rank, c10d::OpType type, std::vector<at::Tensor> results)
      : Work(rank, type), results_(std::move(results)) {}

  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds = kNoTimeout) override { return true; }
  void synchronize() override {}
  void blockCurrentStream() override {}
  std::vector<at::Tensor> result() override { return results_; }
  // The reducer of DistributedDataParallel takes its buckets from here.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return completed(c10::ListType::ofTensors(), results_);
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override {
    return completed(c10::IntType::get(), static_cast<int64_t>(c10d::WorkResult::SUCCESS));
  }

 private:
  static c10::intrusive_ptr<c10::ivalue::Future> completed(c10::TypePtr type, c10::IValue value) {
    auto future = c10::make_intrusive<c10::ivalue::Future>(std::move(type));
    future->markCompleted(std::move(value));
    return future;
  }

  std::vector<at::Tensor> results_;
};

// The tensor has what comes after wait().
class ReceivingWork final : public c10d::Work {
 public:
  ReceivingWork(int rank, c10::intrusive_ptr<Work> on_host, at::Tensor bytes, at::Tensor to)
      : Work(rank, c10d::OpType::RECV),
        on_host_(std::move(on_host)),
        bytes_(std::move(bytes)),
        to_(std::move(to)) {}

  bool isCompleted() override { return on_host_->isCompleted(); }
  bool isSuccess() const override { return on_host_->isSuccess(); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override {
    on_host_->wait(timeout);
    if (!bytes_.defined()) return true;
    const at::AutoDispatchBelowADInplaceOrView below;
    to_.copy_(std::exchange(bytes_, {}).view(to_.scalar_type()).view(to_.sizes()));
    return true;
  }
  std::vector<at::Tensor> result() override { return {to_}; }

 private:
  const c10::intrusive_ptr<Work> on_host_;
  at::Tensor bytes_, to_;
};

}  // namespace torch_xla::dispatch
