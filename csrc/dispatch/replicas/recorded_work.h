// RecordedWork, which a call of torch.distributed gives for an exchange that was recorded. It is
// complete at once: who reads the results waits for them, as for those of any other call.
#pragma once

#include <utility>
#include <vector>

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

}  // namespace torch_xla::dispatch
