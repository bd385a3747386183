#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cpu/call_text.h"
#include "util/error.h"

namespace torch_xla::cpu {
namespace {

using ArgumentText = CallText::ArgumentText;
using Constant = CallText::Constant;
using Kind = CallText::Kind;

ArgumentText constant(Constant value) { return {.constant = std::move(value)}; }

// Every letter of the grammar, and the numbers and strings that a reader may stumble on.
CallText every_kind() {
  const Constant ints{std::vector<Constant>{{int64_t{1}}, {int64_t{-2}}, {}}};
  const Constant nested{std::vector<Constant>{ints, {std::vector<Constant>{}}, {0.5}}};
  return {"aten::name.overload",
          {{.kind = Kind::Tensor, .operand = 0},
           {.kind = Kind::WrappedNumber, .operand = 1},
           {.kind = Kind::Columns, .operand = 12},
           {.kind = Kind::Part, .operand = 3, .dim = 0},
           {.kind = Kind::TransposedPart, .operand = 4, .dim = Partition::kWhole},
           {.kind = Kind::Part, .operand = 5, .dim = 2},
           {.kind = Kind::Scalar, .operand = 6},
           {.kind = Kind::Float, .operand = 7},
           {.kind = Kind::Seed, .operand = 8},
           {.kind = Kind::List, .list = {{9}, {}, {10}, {.operand = 14, .dim = 1}}},
           {.kind = Kind::List},
           {.kind = Kind::SharedOut, .list = {{11, 0}, {12, 1}}},
           {.kind = Kind::SharedOut, .list = {{13}, {.operand = 15, .row = 2}}},
           constant({}),
           constant({std::numeric_limits<int64_t>::min()}),
           constant({0.1}),
           constant({-std::numeric_limits<double>::infinity()}),
           constant({true}),
           constant({false}),
           constant({std::complex<double>(-1.5, 1e-310)}),
           constant({std::string("a b)] =\"\n q3:x")}),
           constant({std::string()}),
           constant(nested)},
          {{}, {false}, {true, 1}, {true, Partition::kSum}, {true, 2, true}}};
}

TEST(CallText, ReadsWhatItWrites) {
  const CallText call = every_kind();
  EXPECT_EQ(CallText::parse(call.str()), call) << call.str();
  const CallText bare{"aten::nothing"};
  EXPECT_EQ(CallText::parse(bare.str()), bare);
}

// Programs of the persistent cache hold such texts.
TEST(CallText, IsThatOfProgramsThatAreStored) {
  const std::string operands =
      "aten::name.overload t0 w1 m12 p3/0 x4/-1 p5/2 s6 f7 g8 (t9 - t10 p14/1) () {u11:0 u12:1 } "
      "{t13 r15/2 } "
      "-";
  EXPECT_EQ(every_kind().str().substr(0, operands.size()), operands);
  const CallText call{"aten::sum.dim_IntList",
                      {{.kind = Kind::Part, .operand = 0, .dim = 1},
                       constant({std::vector<Constant>{{int64_t{0}}, {int64_t{2}}}}),
                       constant({true}),
                       constant({0.5}),
                       constant({std::complex<double>(1, -2)}),
                       constant({std::string("cpu")})},
                      {{}, {true, 0}, {true, Partition::kSum}, {false}, {true, 1, true}}};
  EXPECT_EQ(call.str(),
            "aten::sum.dim_IntList p0/1 [i0 i2] b1 d0x1p-1 c0x1p+0,-0x1p+1 q3:cpu = * /0 + - x1");
}

TEST(CallText, RefusesWhatItDoesNotWrite) {
  for (const char* text : {"aten::add t0",        " =",
                           "aten::add t =",       "aten::add tx =",
                           "aten::add p0 =",      "aten::add (t0 =",
                           "aten::add {u0:} =",   "aten::add [i1 =",
                           "aten::add (x0) =",    "aten::add c0x1p+0 =",
                           "aten::add q9:cpu =",  "aten::add q3 =",
                           "aten::add z1 =",      "aten::add ] =",
                           "aten::add t-1 =",     "aten::add (t-1) =",
                           "aten::add (u0:-1) =", "aten::add t0 = ?",
                           "aten::add (p0) =",    "aten::add (p0/-1) =",
                           "aten::add {p0/1 } =", "aten::add (t0/1) =",
                           "aten::add (p0:1) =",  "aten::add t0 = /",
                           "aten::add t0 = x"}) {
    EXPECT_THROW(CallText::parse(text), util::Error) << text;
  }
}

}  // namespace
}  // namespace torch_xla::cpu
