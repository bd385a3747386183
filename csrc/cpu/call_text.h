// The text by which a program names a call of a PyTorch operator: its grammar, its writer and its
// reader. HostCall writes it when a rule is lowered; the handler of host_kernel.h reads it when the
// program runs, perhaps in another process. Builds without torch.
//
//   OPERATOR ARGUMENT .. = RESULT ..     arguments in schema order, and all that the operator
//   returns
//
// Arguments:
//   tN wN    operand N as a tensor; as a 0-dim tensor that is a wrapped Python number
//   mN       operand N as a tensor whose matrices lie column by column
//   pN/D     in each part of the call, a part of operand N along dimension D
//   xN/D     the same, the middle two dimensions swapped after that (of a matrix, its two); the
//            whole where D is -1
//   sN fN gN operand N (0-dim) as a Scalar; as a float; as the seed of a fresh Generator
//   (..)     list of tensors tN and parts pN/D, with - for a missing one; in it uN:R is operand N,
//            which the operator updates to be result R
//   {..}     the same, of tensors whose elements are shared out among the parts of the call; in it
//            rN/I is entry I of operand N along the first dimension
//   -        None
//   iN dX bN cX,Y qN:text    int, float (hexadecimal), bool, complex, string of N bytes
//   [..]     list of these
// Results:
//   * /D + - given whole; each part of the call gives its part along D; the parts' values are added
//            up; not given, as the program needs none
//   xD       as /D, the middle two dimensions swapped after that
#pragma once

#include <complex>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace torch_xla::cpu {

// The parts of a call that can run side by side.
struct Partition {
  static constexpr int64_t kWhole = -1, kSum = -2;
  struct Cut {
    size_t position;  // of an operand, in the schema
    int64_t dim;
  };
  std::vector<Cut> operands;  // all others are given whole to each part
  // For each tensor that the operator returns: the dimension along which parts lie next to each
  // other, kSum where parts add up, kWhole where there is one part only.
  std::vector<int64_t> results;
};

struct CallText {
  struct Constant {
    std::variant<std::monostate, int64_t, double, bool, std::complex<double>, std::string,
                 std::vector<Constant>>
        value;

    friend bool operator==(const Constant&, const Constant&) = default;
  };

  // The kind of value that the kernel gets for an argument; the values are the letters of the
  // grammar.
  enum class Kind : char {
    Constant = '\0',
    Tensor = 't',
    WrappedNumber = 'w',
    Columns = 'm',
    Part = 'p',
    TransposedPart = 'x',
    Scalar = 's',
    Float = 'f',
    Seed = 'g',
    List = '(',
    SharedOut = '{',
  };

  struct ArgumentText {
    Kind kind = Kind::Constant;
    size_t operand = 0;
    int64_t dim = Partition::kWhole;  // of a part
    Constant constant = {};
    struct Element {
      int64_t operand = -1;             // none: a missing tensor
      int64_t result = -1;              // of an operand that the operator updates
      int64_t dim = Partition::kWhole;  // of a part
      int64_t row = -1;                 // of an entry along the first dimension

      friend bool operator==(const Element&, const Element&) = default;
    };
    std::vector<Element> list = {};

    bool is_part() const;  // one of the kinds that may be a part of an operand

    friend bool operator==(const ArgumentText&, const ArgumentText&) = default;
  };

  struct Result {
    bool wanted = true;
    int64_t cut = Partition::kWhole;  // as in Partition
    bool transposed = false;

    friend bool operator==(const Result&, const Result&) = default;
  };

  std::string op;  // "aten::convolution" or "aten::sum.dim_IntList"
  std::vector<ArgumentText> arguments = {};
  std::vector<Result> results = {};

  std::string str() const;
  // Throws where the text is not one that str() gives.
  static CallText parse(std::string_view text);

  friend bool operator==(const CallText&, const CallText&) = default;
};

// The attributes of a custom call that carry its text, and, where its kernel may fail, the recorded
// call that it is made for (hlo::Builder::call).
inline constexpr char kCallTextAttribute[] = "key";
inline constexpr char kFailingCallAttribute[] = "torch_xla.failing_call";

}  // namespace torch_xla::cpu
