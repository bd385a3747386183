// Types, attributes and the printer: text as it stands in the module.
#include <array>

#include "hlo_testing.h"

namespace torch_xla::hlo::testing {
namespace {

constexpr std::array kAll = {
    DType::Pred,       DType::S4,     DType::S8,         DType::S16,  DType::S32, DType::S64,
    DType::U4,         DType::U8,     DType::U16,        DType::U32,  DType::U64, DType::F8E4M3FN,
    DType::F8E4M3FNUZ, DType::F8E5M2, DType::F8E5M2FNUZ, DType::BF16, DType::F16, DType::F32,
    DType::F64,        DType::C64,    DType::C128};

TEST(HloTypes, Names) {
  const std::vector<std::string> names = {
      "i1",         "i4",   "i8",   "i16",  "i32",      "i64",          "ui4",
      "ui8",        "ui16", "ui32", "ui64", "f8E4M3FN", "f8E4M3FNUZ",   "f8E5M2",
      "f8E5M2FNUZ", "bf16", "f16",  "f32",  "f64",      "complex<f32>", "complex<f64>"};
  ASSERT_EQ(names.size(), kAll.size());
  for (size_t i = 0; i < kAll.size(); ++i) {
    EXPECT_EQ(name(kAll[i]), names[i]);
    EXPECT_EQ((Type{kAll[i], {}}).str(), "tensor<" + names[i] + ">");
    EXPECT_EQ((Type{kAll[i], {2, 0, 3}}).str(), "tensor<2x0x3x" + names[i] + ">");
  }
}

TEST(HloTypes, Kinds) {
  for (DType d : kAll) {
    SCOPED_TRACE(name(d));
    EXPECT_EQ(is_float(d) + is_complex(d) + is_integer(d) + (d == DType::Pred), 1);
    EXPECT_EQ(is_unsigned(d), name(d).starts_with("ui"));
    EXPECT_EQ(byte_size(d), (bit_width(d) + 7) / 8);
    EXPECT_EQ(complex_of(real_part(d)), is_complex(d) || d == DType::F32 ? complex_of(d)
                                        : d == DType::F64                ? DType::C128
                                                                         : d);
  }
  EXPECT_EQ(bit_width(DType::S4), 4u);
  EXPECT_EQ(byte_size(DType::S4), 1u);
  EXPECT_EQ(byte_size(DType::Pred), 1u);
  EXPECT_EQ(byte_size(DType::C128), 16u);
  EXPECT_EQ((Type{DType::F32, {}}).elements(), 1);
  EXPECT_EQ((Type{DType::F32, {4, 0, 2}}).elements(), 0);
  EXPECT_EQ((Type{DType::F32, {4, 5}}).with(DType::S8), (Type{DType::S8, {4, 5}}));
  EXPECT_EQ((Type{DType::F32, {4, 5}}).with(Dims{2}), (Type{DType::F32, {2}}));
}

TEST(HloAttributes, Text) {
  EXPECT_EQ(attr::i64(-3), "-3 : i64");
  EXPECT_EQ(attr::i32(7), "7 : i32");
  EXPECT_EQ(attr::boolean(true), "true");
  EXPECT_EQ(attr::string("a\"b\\c\nd\xC3\xA9"), R"("a\22b\\c\0Ad\C3\A9")");
  EXPECT_EQ(attr::symbol("inner_2.x$"), "@inner_2.x$");
  EXPECT_EQ(attr::symbol("2 words"), "@\"2 words\"");
  EXPECT_EQ(attr::symbol("a-b"), "@\"a-b\"");
  EXPECT_EQ(attr::array({}), "array<i64>");
  EXPECT_EQ(attr::array({1, -2}), "array<i64: 1, -2>");
  const std::array flags = {true, false};
  EXPECT_EQ(attr::array(std::span<const bool>(flags)), "array<i1: true, false>");
  const Dims four = {0, 1, -2, 3};
  EXPECT_EQ(attr::matrix(four, 2), "dense<[[0, 1], [-2, 3]]> : tensor<2x2xi64>");
  EXPECT_EQ(attr::matrix({}, 2), "dense<> : tensor<0x2xi64>");
  EXPECT_EQ(attr::stablehlo("precision", "HIGH"), "#stablehlo<precision HIGH>");
}

TEST(HloBuilder, OneFunction) {
  Builder b;
  const std::array types = {Type{DType::F32, {2}}, Type{DType::F32, {2}}};
  const std::array<Attributes, 2> donated = {Attributes{{"tf.aliasing_output", attr::i32(0)}},
                                             Attributes{}};
  const Values arguments = b.begin_function("main", types, donated);
  const Value sum = add(arguments[0], arguments[1]);
  const std::array<Attributes, 1> named = {Attributes{{"jax.result_info", attr::string("y")}}};
  b.end_function(std::array{sum}, named);
  b.module_attribute("mhlo.num_partitions", attr::i32(1));
  EXPECT_EQ(b.finish("step"), R"(module @step attributes {mhlo.num_partitions = 1 : i32} {
  func.func public @main(%0: tensor<2xf32> {tf.aliasing_output = 0 : i32}, %1: tensor<2xf32>) -> (tensor<2xf32> {jax.result_info = "y"}) {
    %2 = "stablehlo.add"(%0, %1) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    "func.return"(%2) : (tensor<2xf32>) -> ()
  }
}
)");
}

TEST(HloBuilder, RegionAndLocation) {
  Builder b;
  const Type row{DType::S32, {3}};
  const Value x = b.begin_function("main", std::span(&row, 1))[0];
  b.set_location("loc(\"model.py\":3:0)");
  const Value total = hlo::reduce(x, scalar_int(b, 0, DType::S32), std::array<int64_t, 1>{0}, add);
  b.set_location("");
  b.end_function(std::array{total});
  EXPECT_EQ(b.finish(), R"(module @torch_xla {
  func.func public @main(%0: tensor<3xi32>) -> (tensor<i32>) {
    %1 = "stablehlo.constant"() {value = dense<0> : tensor<i32>} : () -> tensor<i32> loc("model.py":3:0)
    %5 = "stablehlo.reduce"(%0, %1) ({
    ^bb0(%2: tensor<i32>, %3: tensor<i32>):
      %4 = "stablehlo.add"(%2, %3) : (tensor<i32>, tensor<i32>) -> tensor<i32> loc("model.py":3:0)
      "stablehlo.return"(%4) : (tensor<i32>) -> () loc("model.py":3:0)
    }) {dimensions = array<i64: 0>} : (tensor<3xi32>, tensor<i32>) -> tensor<i32> loc("model.py":3:0)
    "func.return"(%5) : (tensor<i32>) -> ()
  }
}
)");
}

// Locations of files and of named scopes reach the compiled program as metadata.
TEST(HloBuilder, LocationsReachTheCompiler) {
  Program p;
  p.b.set_location(R"(loc("encoder/linear"(callsite("model.py":3:0 at "train.py":9:0))))");
  const Value x = p.floats({2}, {1, 2});
  p.expect(exp(tanh(x)), {std::exp(std::tanh(1.0)), std::exp(std::tanh(2.0))}, 1e-6);
  p.b.set_location("");
  p.run();
}

// A donated argument is gone after the run, and its memory holds the result.
TEST(HloBuilder, DonationAttribute) {
  Builder b;
  const Type type{DType::F32, {64}};
  const std::array<Attributes, 1> donated = {Attributes{{"tf.aliasing_output", attr::i32(0)}}};
  const Value x = b.begin_function("main", std::span(&type, 1), donated)[0];
  b.end_function(std::array{add(x, one(b, type))});
  auto executable = pjrt::Executable::compile(*pjrt::testing::client(), b.finish());
  EXPECT_EQ(executable->memory_stats().value().alias_bytes, 256);
  auto buffer = pjrt::testing::upload(std::vector<float>(64, 1.0f), {64});
  PJRT_Buffer* argument = buffer->handle();
  auto outputs = executable->execute({&argument, 1}).outputs;
  EXPECT_EQ(pjrt::testing::download<float>(*outputs[0]), std::vector<float>(64, 2.0f));
  EXPECT_TRUE(buffer->is_deleted());
}

TEST(HloBuilder, PrivateFunctionsAreBuiltOnceAndCalled) {
  Program p;
  const Type row{DType::F32, {2}};
  int built = 0;
  const auto twice = [&](const Value& x) {
    p.b.private_function("twice it", std::span(&row, 1), [&](std::span<const Value> args) {
      ++built;
      // One function may need another.
      p.b.private_function("sum", std::array{row, row}, [](std::span<const Value> inner) {
        return Values{add(inner[0], inner[1])};
      });
      return call(p.b, "sum", std::array{args[0], args[0]}, std::span(&row, 1));
    });
    return call(p.b, "twice it", std::span(&x, 1), std::span(&row, 1))[0];
  };
  const Value x = p.floats({2}, {1, -3});
  p.expect(twice(twice(x)), {4, -12});
  // From inside a region as well.
  const Values looped = while_loop(
      std::array{x, scalar_int(p.b, 0, DType::S32)},
      [&](std::span<const Value> s) {
        return compare(Direction::LT, s[1], scalar_int(p.b, 3, DType::S32));
      },
      [&](std::span<const Value> s) {
        return Values{twice(s[0]), add(s[1], scalar_int(p.b, 1, DType::S32))};
      });
  p.expect(looped[0], {8, -24});
  p.run();
  EXPECT_EQ(built, 1);
}

TEST(HloBuilder, ModuleItemsPrecedeTheFunctions) {
  Builder b;
  b.module_item("  sdy.mesh @mesh = <[\"x\"=2]>");
  const Type type{DType::F32, {}};
  const Values arguments = b.begin_function("main", std::span(&type, 1));
  b.end_function(arguments);
  const std::string text = b.finish();
  EXPECT_LT(text.find("sdy.mesh"), text.find("func.func"));
  EXPECT_NO_THROW(pjrt::Executable::compile(*pjrt::testing::client(), text));
}

TEST(HloBuilder, Errors) {
  Builder b;
  expect_error([&] { b.end_function({}); }, "end_function: expected an open function");
  const Type type{DType::F32, {}};
  const std::array<Attributes, 2> two;
  EXPECT_EQ(error_of([&] { b.begin_function("main", std::span(&type, 1), two); }),
            "main: expected attributes for at most 1 arguments, got 2.");
  const Values arguments = b.begin_function("main", std::span(&type, 1));
  EXPECT_EQ(error_of([&] { b.finish(); }),
            "finish: expected all functions to be ended, found main open.");
  EXPECT_EQ(error_of([&] { b.end_function(arguments, two); }),
            "main: expected attributes for at most 1 results, got 2.");
  EXPECT_EQ(error_of([&] { b.op("stablehlo.add", {arguments[0], Value()}, type); }),
            "stablehlo.add: expected an operand, got a value that was never built.");
  Builder other;
  const Value foreign = other.begin_function("main", std::span(&type, 1))[0];
  EXPECT_EQ(error_of([&] { add(arguments[0], foreign); }),
            "stablehlo.add: expected operands of this module, got tensor<f32> of another builder.");
  EXPECT_EQ(error_of([] { attr::symbol(""); }), "symbol: expected a name, got none.");

  const auto same = [](std::span<const Value> args) { return Values(args.begin(), args.end()); };
  EXPECT_TRUE(b.private_function("same", std::span(&type, 1), same));
  EXPECT_FALSE(b.private_function("same", std::span(&type, 1), same));
  const Type wide{DType::F64, {}};
  expect_error([&] { b.private_function("same", std::span(&wide, 1), same); },
               "same: expected the arguments of the function of this name, (tensor<f32>), got "
               "(tensor<f64>). Put what differs into the name.");
  b.end_function(arguments);
}

}  // namespace
}  // namespace torch_xla::hlo::testing
