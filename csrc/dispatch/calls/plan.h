// OperatorPlan, the facts that the recorder reads off an ATen operator's schema: the functional
// operator that a node means, the written arguments, and the place of each result.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "lazy/operator.h"
#include "ops/lowering.h"

namespace torch_xla::dispatch {

enum class ArgumentType : uint8_t {
  Tensor,
  OptionalTensor,
  TensorList,
  OptionalTensorList,
  Number,       // Scalar and Scalar?: a runtime input unless the rule says otherwise
  NumberList,   // Scalar[]
  FloatNumber,  // float that the rule declares a runtime input
  Generator,
  Static,
};

struct ArgumentPlan {
  ArgumentType type = ArgumentType::Static;
  bool static_number = false;  // a Scalar that is part of the program's identity
  bool shape_number = false;   // a Scalar on which the result's shape depends
  // A number that equals its default counts as not given and is a constant (alpha = 1).
  bool has_default = false;
  c10::IValue fallback;
};

// One result of the original operator.
struct ReturnPlan {
  int argument = -1;  // not negative: this (written) argument itself is returned
  int output = -1;    // not negative: this result of the functional operator
};

struct OperatorPlan {
  std::shared_ptr<const lazy::Operator> target;  // the functional operator
  std::vector<ArgumentPlan> arguments;           // of the functional operator
  // Written arguments of the original operator and the functional results that they take.
  struct Write {
    int argument;
    int output;
    bool is_out;  // an out= argument: resized and not read
    // The argument that must be given for the write to happen, by position; or always, or never.
    static constexpr int kAlways = -1, kNever = -2;
    int only_with = kAlways;
  };
  std::vector<Write> writes;
  std::vector<ReturnPlan> returns;
  std::vector<bool> list_output;  // per functional result: Tensor[]
  size_t num_arguments = 0;       // of the original operator
  bool is_random = false;
  // The position of `dtype` in a reduction with out=, which defaults to the dtype of out=.
  int dtype_as_out = -1;
};

// Returns the operator of this name; throws where PyTorch has none.
std::shared_ptr<const lazy::Operator> find_operator(const c10::OperatorName& name);
bool has_tag(const lazy::Operator& op, at::Tag tag);
util::Hash128 hash_of_name(std::string_view full_name);  // lazy::Operator::hash

// Returns null where the operator has no functional twin.
std::unique_ptr<OperatorPlan> make_plan(const c10::OperatorHandle& op);

}  // namespace torch_xla::dispatch
