// Factories that PyTorch fills through memory, made of calls that can be recorded.
#pragma once

#include <memory>
#include <optional>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace torch_xla::dispatch {

// arange(..., out=), eye(..., out=): the factory itself, asked for the output's dtype, and a copy.
class FactoryOutKernel final : public c10::OperatorKernel {
 public:
  // Null where `op` is no out= form of a factory.
  static std::unique_ptr<FactoryOutKernel> make(const c10::OperatorHandle& op);
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

 private:
  explicit FactoryOutKernel(c10::OperatorHandle factory) : factory_(std::move(factory)) {}
  c10::OperatorHandle factory_;
};

void register_factories(torch::Library& library);

}  // namespace torch_xla::dispatch
