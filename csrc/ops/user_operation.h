// Operations that a user's computation is built of, one by one and by XLA's names
// (torch_xla.core.xla_builder); user_operation.cpp and user_operation_windows.cpp have their
// lowerings.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <ATen/core/ivalue.h>

#include "lazy/function.h"
#include "ops/lowering.h"
#include "util/error.h"

namespace torch_xla::ops {

inline constexpr const char* kUserOperation = "torch_xla::user_operation";

// The options of an operation beside its operands, as text by name: numbers are separated by
// commas.
class UserOptions {
 public:
  using Texts = std::map<std::string, std::string, std::less<>>;

  explicit UserOptions(Texts texts) : texts_(std::move(texts)) {}
  // From names and texts by turns, the argument of a recorded call; and back.
  explicit UserOptions(const c10::IValue& list);
  c10::IValue list() const;

  bool has(std::string_view name) const { return texts_.contains(name); }
  // Throw where the option is not given, or is of another kind.
  const std::string& text(std::string_view name) const;
  std::vector<int64_t> integers(std::string_view name) const;
  int64_t integer(std::string_view name) const;
  bool flag(std::string_view name) const { return has(name) && integer(name) != 0; }

 private:
  Texts texts_;
};

// One operation of a user's computation that is being lowered.
struct UserOperation {
  explicit UserOperation(Lowering& lowering);

  // Operand `i`; throws where there are fewer.
  const hlo::Value& in(size_t i) const;
  // The computation that an option of this name gives, of these arguments.
  hlo::Values run(std::string_view option, const hlo::Values& arguments) const;
  // One that combines two scalars.
  hlo::Combine combine(std::string_view option) const;
  hlo::Builder& b() const { return l.b; }
  template <class... Parts>
  void check(bool holds, const Parts&... parts) const {
    TXLA_CHECK(holds, "xla_builder: ", name, ": ", parts...);
  }

  Lowering& l;
  std::string name;
  UserOptions options;
  hlo::Values operands;  // in the types that they were declared with
};

using UserLowering = hlo::Values (*)(const UserOperation&);
using UserLowerings = std::unordered_map<std::string_view, UserLowering>;
// Windows and convolutions.
const UserLowerings& window_operations();

// Convert between the names of XLA's element types, such as "f32" and "pred", and PyTorch's.
// Throw for those that PyTorch or this project lacks.
at::ScalarType dtype_of_xla(std::string_view name);
std::string xla_name(at::ScalarType dtype);
at::ScalarType dtype_of_hlo(hlo::DType dtype);

}  // namespace torch_xla::ops
