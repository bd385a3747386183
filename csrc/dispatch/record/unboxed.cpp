#include "dispatch/record/unboxed.h"

#include <array>
#include <string>
#include <tuple>
#include <utility>

namespace torch_xla::dispatch {
namespace {

using at::Scalar;
using at::Tensor;
using c10::IValue;
using torch::jit::Stack;
using MaybeTensor = std::optional<Tensor>;
using MaybeScalar = std::optional<Scalar>;
using MaybeDtype = std::optional<at::ScalarType>;

// The arguments of a call as a stack whose tensors are not counted, until own() counts them.
class Borrowed {
 public:
  template <class... Args>
  explicit Borrowed(const Args&... args) {
    stack_.reserve(sizeof...(Args));
    (push(args), ...);
  }
  ~Borrowed() {
    if (!is_owner_) give_back([](Tensor&&) { return IValue(); });
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

  Stack& stack() { return stack_; }
  // From here on the stack may be changed.
  void own() {
    give_back([](Tensor&& tensor) { return IValue(Tensor(tensor)); });
    is_owner_ = true;
  }

 private:
  using Traits = c10::MaybeOwnedTraits<Tensor>;

  void push(const Tensor& tensor) { stack_.emplace_back(Traits::createBorrow(tensor)); }
  void push(const MaybeTensor& tensor) {
    if (tensor) {
      push(*tensor);
    } else {
      stack_.emplace_back();
    }
  }
  template <class T>
  void push(const T& value) {
    stack_.emplace_back(value);
  }

  // Puts what `instead` makes of each borrowed tensor in its place.
  template <class Instead>
  void give_back(Instead instead) {
    for (IValue& value : stack_) {
      if (!value.isTensor()) continue;
      Tensor tensor = std::move(value).toTensor();
      value = instead(std::move(tensor));
      Traits::destroyBorrow(tensor);
    }
  }

  Stack stack_;
  bool is_owner_ = false;
};

// --- a kernel for each kind of function --------------------------------------------------------

template <class Result>
Result result_of(IValue* results) {
  if constexpr (std::is_same_v<Result, Tensor>) {
    return std::move(results[0]).toTensor();
  } else {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return Result(std::move(results[I]).toTensor()...);
    }(std::make_index_sequence<std::tuple_size_v<Result>>());
  }
}

template <class Function>
struct Kernel;

template <class Result, class... Args>
struct Kernel<Result(Args...)> {
  static torch::CppFunction of(std::shared_ptr<Recorder> recorder) {
    return torch::CppFunction([recorder = std::move(recorder)](Args... args) -> Result {
      Borrowed arguments(args...);
      Recorder::Results results;
      IValue* first = nullptr;
      if (const auto instead = recorder->record(arguments.stack(), 0, results)) {
        arguments.own();
        instead(&arguments.stack());
        first = arguments.stack().data();
      } else {
        first = results.begin();
      }
      if constexpr (std::is_reference_v<Result>) {  // an operator in place
        return std::get<0>(std::tie(args...));
      } else {
        return result_of<Result>(first);
      }
    });
  }
};

// --- which operators have which ----------------------------------------------------------------

// A letter for each type that arguments and results may have.
template <class T>
constexpr char letter_of() {
  if constexpr (std::is_same_v<T, Tensor&>) {
    return 'W';  // written
  } else if constexpr (std::is_same_v<T, const Tensor&> || std::is_same_v<T, Tensor>) {
    return 'T';
  } else if constexpr (std::is_same_v<T, const MaybeTensor&>) {
    return 't';
  } else if constexpr (std::is_same_v<T, const Scalar&>) {
    return 'S';
  } else if constexpr (std::is_same_v<T, const MaybeScalar&>) {
    return 's';
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return 'I';
  } else if constexpr (std::is_same_v<T, c10::SymInt>) {
    return 'Y';
  } else if constexpr (std::is_same_v<T, c10::SymIntArrayRef>) {
    return 'L';
  } else if constexpr (std::is_same_v<T, at::OptionalIntArrayRef>) {
    return 'l';
  } else if constexpr (std::is_same_v<T, double>) {
    return 'F';
  } else if constexpr (std::is_same_v<T, bool>) {
    return 'B';
  } else if constexpr (std::is_same_v<T, std::array<bool, 3>>) {
    return 'M';
  } else if constexpr (std::is_same_v<T, at::ScalarType>) {
    return 'D';
  } else if constexpr (std::is_same_v<T, MaybeDtype>) {
    return 'd';
  } else {
    static_assert(std::is_same_v<T, c10::string_view>);
    return 'C';
  }
}

constexpr char kNone = '?';  // of other types

char letter_of(const c10::Argument& argument) {
  c10::TypePtr type = argument.real_type();
  const bool is_optional = type->kind() == c10::TypeKind::OptionalType;
  if (is_optional) type = type->castRaw<c10::OptionalType>()->getElementType();
  const auto letter = [&](char given, char optional = kNone) {
    return is_optional ? optional : given;
  };
  if (argument.alias_info() != nullptr) {
    const bool in_place = type->kind() == c10::TypeKind::TensorType && !argument.is_out();
    return in_place ? letter('W') : kNone;
  }
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return letter('T', 't');
    case c10::TypeKind::NumberType:
      return letter('S', 's');
    case c10::TypeKind::SymIntType:
      return letter('Y');
    case c10::TypeKind::IntType:
      return letter('I');
    case c10::TypeKind::FloatType:
      return letter('F');
    case c10::TypeKind::BoolType:
      return letter('B');
    case c10::TypeKind::StringType:
      return letter('C');
    case c10::TypeKind::ScalarTypeType:
      return letter('D', 'd');
    case c10::TypeKind::ListType: {
      const c10::TypeKind element = type->castRaw<c10::ListType>()->getElementType()->kind();
      if (element == c10::TypeKind::SymIntType) return letter('L');
      if (element == c10::TypeKind::IntType) return letter(kNone, 'l');
      if (element == c10::TypeKind::BoolType && argument.N() == 3) return letter('M');
      return kNone;
    }
    default:
      return kNone;
  }
}

template <class Function>
struct Letters;

template <class... Results>
struct Letters<std::tuple<Results...>> {
  static std::string of() { return {letter_of<Results>()...}; }
};

template <class Result, class... Args>
struct Letters<Result(Args...)> {
  static std::string of() {
    std::string results;
    if constexpr (requires { std::tuple_size<Result>::value; }) {
      results = Letters<Result>::of();
    } else {
      results = letter_of<Result>();
    }
    return std::string{letter_of<Args>()...} + ">" + results;
  }
};

std::string letters_of(const c10::FunctionSchema& schema) {
  std::string letters;
  for (const c10::Argument& a : schema.arguments()) letters += letter_of(a);
  letters += '>';
  for (const c10::Argument& r : schema.returns()) letters += letter_of(r);
  return letters;
}

using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

// Some operators' C++ functions are not what their schema tells: PyTorch knows those of its
// kernels.
template <class Function>
bool is_called_as(const c10::OperatorHandle& op) {
  try {
    op.typed<Function>();
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

template <class... Functions>
std::optional<torch::CppFunction> first_of(const c10::OperatorHandle& op,
                                           std::unique_ptr<Recorder>& recorder) {
  const std::string letters = letters_of(op.schema());
  std::optional<torch::CppFunction> kernel;
  const auto offer = [&]<class Function>(std::type_identity<Function>) {
    if (kernel || Letters<Function>::of() != letters || !is_called_as<Function>(op)) return;
    kernel.emplace(Kernel<Function>::of(std::move(recorder)));
  };
  (offer(std::type_identity<Functions>()), ...);
  return kernel;
}

}  // namespace

std::optional<torch::CppFunction> unboxed(const c10::OperatorHandle& op,
                                          std::unique_ptr<Recorder>& recorder) {
  // An argument that is returned is the first, and nothing else is.
  const auto& returns = recorder->plan().returns;
  const auto is_argument = [](const ReturnPlan& r) { return r.argument >= 0; };
  const bool returns_first = returns.size() == 1 && returns[0].argument == 0;
  if (!returns_first && std::ranges::any_of(returns, is_argument)) return std::nullopt;
  // clang-format off
  return first_of<
      // elementwise operators, products and their kin
      Tensor(const Tensor&),
      Tensor(const Tensor&, const Tensor&),
      Tensor(const Tensor&, const Tensor&, const Tensor&),
      Tensor(const Tensor&, const Scalar&),
      Tensor(const Tensor&, const Scalar&, const Scalar&),
      Tensor(const Tensor&, const Scalar&, const Scalar&, const Scalar&),
      Tensor(const Tensor&, const Tensor&, const Scalar&),
      Tensor(const Tensor&, const Tensor&, const Scalar&, const Scalar&),
      Tensor(const Tensor&, const Tensor&, const Tensor&, const Scalar&),
      Tensor(const Tensor&, const Tensor&, const Tensor&, const Scalar&, const Scalar&),
      Tensor(const Tensor&, const MaybeScalar&, const MaybeScalar&),
      Tensor(const Tensor&, const Tensor&, const MaybeTensor&),
      Tensor(const Tensor&, c10::string_view),
      Tensor(const Tensor&, const Tensor&, c10::string_view),
      Tensor(const Tensor&, bool),
      Tensor(const Tensor&, int64_t),
      Tensor(const Tensor&, int64_t, bool),
      // in place
      Tensor&(Tensor&),
      Tensor&(Tensor&, const Tensor&),
      Tensor&(Tensor&, const Scalar&),
      Tensor&(Tensor&, const Tensor&, const Scalar&),
      Tensor&(Tensor&, const Tensor&, const Tensor&),
      Tensor&(Tensor&, const Tensor&, const Tensor&, const Scalar&),
      Tensor&(Tensor&, const MaybeScalar&, const MaybeScalar&),
      // reductions, and along a dimension
      Tensor(const Tensor&, MaybeDtype),
      Tensor(const Tensor&, at::OptionalIntArrayRef, bool, MaybeDtype),
      Tensor(const Tensor&, int64_t, MaybeDtype),
      Tensor(const Tensor&, const Tensor&, int64_t, at::ScalarType),
      Tensor(const Tensor&, int64_t, const Tensor&),
      Tensor(const Tensor&, int64_t, const Tensor&, bool),
      Pair(const Tensor&, int64_t, bool),
      Tensor(const Tensor&, c10::SymIntArrayRef, int64_t, c10::SymInt),
      Tensor(const Tensor&, c10::SymIntArrayRef, int64_t, c10::SymInt, c10::SymInt, c10::SymInt),
      // layers
      Tensor(const Tensor&, const Tensor&, c10::SymInt, bool, bool),
      Tensor(const Tensor&, const Tensor&, const MaybeTensor&, c10::SymIntArrayRef,
             c10::SymIntArrayRef, c10::SymIntArrayRef, bool, c10::SymIntArrayRef, c10::SymInt),
      Triple(const Tensor&, c10::SymIntArrayRef, const MaybeTensor&, const MaybeTensor&, double),
      Triple(const Tensor&, const Tensor&, c10::SymIntArrayRef, const Tensor&, const Tensor&,
             const MaybeTensor&, const MaybeTensor&, std::array<bool, 3>),
      Triple(const Tensor&, const Tensor&, const Tensor&, std::array<bool, 3>)
  >(op, recorder);
  // clang-format on
}

}  // namespace torch_xla::dispatch
