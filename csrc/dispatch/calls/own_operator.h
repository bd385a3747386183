// OwnOperator registers an operator of this project's own, in namespace torch_xla, with PyTorch and
// the recorder: its schema, the shapes of its results and its lowering.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "ops/lowering.h"

namespace torch_xla::dispatch {

template <class Function>
class OwnOperator;

// Objects have static lifetime. A call records one node.
template <class Result, class... Args>
class OwnOperator<Result(Args...)> {
 public:
  // `schema` is PyTorch's, without the namespace: "one_hot(Tensor self, int classes) -> Tensor".
  // Without a lowering, programs of the CPU platform call the operator's CPU kernel. `reference`
  // is Traits::reference.
  OwnOperator(const std::string& schema, Result (*meta)(Args...), ops::RuleFunction lower = nullptr,
              ops::RuleFunction on_cpu = nullptr, Result (*reference)(Args...) = nullptr)
      : library_(torch::Library::FRAGMENT, "torch_xla", std::nullopt, __FILE__, __LINE__),
        metas_(torch::Library::IMPL, "torch_xla", c10::DispatchKey::Meta, __FILE__, __LINE__),
        rules_([name = full_name(schema), lower, on_cpu, reference](ops::Registry& r) {
          if (lower != nullptr) r.add(name, lower).on_cpu = on_cpu;
          if (reference != nullptr) {
            r.one(name).reference = c10::KernelFunction::makeFromUnboxedRuntimeFunction(reference);
          }
        }) {
    library_.def(schema.c_str());
    metas_.impl(full_name(schema).c_str(), torch::CppFunction(meta));
    op_ = c10::Dispatcher::singleton()
              .findSchemaOrThrow(full_name(schema).c_str(), "")
              .template typed<Result(Args...)>();
  }

  Result operator()(Args... args) const { return op_->call(std::forward<Args>(args)...); }
  const c10::OperatorHandle& handle() const { return *op_; }

 private:
  static std::string full_name(const std::string& schema) {
    return "torch_xla::" + schema.substr(0, schema.find('('));
  }

  torch::Library library_, metas_;
  ops::Rules rules_;
  std::optional<c10::TypedOperatorHandle<Result(Args...)>> op_;
};

template <class Result, class... Args, class... Rules>
OwnOperator(const std::string&, Result (*)(Args...), Rules...) -> OwnOperator<Result(Args...)>;

}  // namespace torch_xla::dispatch
