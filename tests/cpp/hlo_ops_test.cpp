// Elementwise operations and operations on shapes: values as the compiled program computes them.
#include <array>

#include "hlo_testing.h"

namespace torch_xla::hlo::testing {
namespace {

using std::array;

constexpr double kRough = 2e-6;  // float32

std::vector<double> map(const std::vector<double>& xs, double (*f)(double)) {
  std::vector<double> ys;
  for (double x : xs) ys.push_back(f(x));
  return ys;
}

TEST(HloOps, UnaryFloat) {
  Program p;
  const std::vector<double> numbers = {0.25, 0.5, 1.75};
  const std::vector<std::pair<std::string, double (*)(double)>> table = {
      {"negate", [](double x) { return -x; }},
      {"exponential", std::exp},
      {"exponential_minus_one", std::expm1},
      {"log", std::log},
      {"log_plus_one", std::log1p},
      {"sqrt", std::sqrt},
      {"rsqrt", [](double x) { return 1 / std::sqrt(x); }},
      {"cbrt", std::cbrt},
      {"tanh", std::tanh},
      {"tan", std::tan},
      {"logistic", [](double x) { return 1 / (1 + std::exp(-x)); }},
      {"sine", std::sin},
      {"cosine", std::cos},
      {"floor", std::floor},
      {"ceil", std::ceil},
      {"sign", [](double) { return 1.0; }},
      {"round_nearest_even", std::nearbyint},
      {"round_nearest_afz", std::round}};
  const Value x = p.floats({3}, numbers);
  for (const auto& [name, f] : table) p.expect(unary(name, x), map(numbers, f), kRough);
  // The short names stand for the right operations.
  p.expect(neg(x), {-0.25, -0.5, -1.75});
  p.expect(exp(x), map(numbers, std::exp), kRough);
  p.expect(log(x), map(numbers, std::log), kRough);
  p.expect(sqrt(x), map(numbers, std::sqrt), kRough);
  p.expect(rsqrt(x), {2, 1 / std::sqrt(0.5), 1 / std::sqrt(1.75)}, kRough);
  p.expect(tanh(x), map(numbers, std::tanh), kRough);
  p.expect(logistic(neg(x)), map(numbers, [](double v) { return 1 / (1 + std::exp(v)); }), kRough);
  p.expect(abs(p.floats({3}, {-2.5, -0.0, kNan})), {2.5, 0, kNan});
  p.run();
}

TEST(HloOps, Chlo) {
  Program p;
  const std::vector<double> numbers = {0.25, 0.5, 0.75};
  const std::vector<std::pair<std::string, double (*)(double)>> table = {
      {"erf", std::erf},     {"erfc", std::erfc},   {"lgamma", std::lgamma}, {"asin", std::asin},
      {"acos", std::acos},   {"atan", std::atan},   {"sinh", std::sinh},     {"cosh", std::cosh},
      {"asinh", std::asinh}, {"atanh", std::atanh}, {"tan", std::tan}};
  const Value x = p.floats({3}, numbers);
  for (const auto& [name, f] : table) p.expect(chlo_unary(name, x), map(numbers, f), 1e-5);
  const double digamma_half = -1.9635100260214235, zeta2 = 1.6449340668482264;
  p.expect(chlo_unary("digamma", p.floats({}, {0.5})), {digamma_half}, 1e-5);
  p.expect(chlo_binary("zeta", p.floats({}, {2}), p.floats({}, {1})), {zeta2}, 1e-5);
  p.expect(chlo_binary("polygamma", p.floats({}, {1}), p.floats({}, {1})), {zeta2}, 1e-5);
  p.expect(chlo_binary("next_after", p.floats({}, {1}), p.floats({}, {2})), {1 + 0x1p-23});
  const auto doubles = [&](std::vector<double> v) { return p.input(DType::F64, {5}, v); };
  p.expect(chlo_binary("next_after", doubles({1, -1, 0, 3, kNan}), doubles({2, 0, -1, 3, 1})),
           {1 + 0x1p-52, -1 + 0x1p-53, -0x1p-1074, 3, kNan});
  p.run();
}

TEST(HloOps, Binary) {
  Program p;
  const Value x = p.floats({4}, {7, -7, 0.5, 2}), y = p.floats({4}, {2, 2, 4, -3});
  p.expect(add(x, y), {9, -5, 4.5, -1});
  p.expect(sub(x, y), {5, -9, -3.5, 5});
  p.expect(mul(x, y), {14, -14, 2, -6});
  p.expect(div(x, y), {3.5, -3.5, 0.125, double(2.0f / -3.0f)});
  p.expect(rem(x, y), {1, -1, 0.5, 2});
  p.expect(pow(x, y), {49, 49, 0.0625, 0.125}, kRough);
  p.expect(max(x, y), {7, 2, 4, 2});
  p.expect(min(x, y), {2, -7, 0.5, -3});
  p.expect(max(x, p.floats({4}, {kNan, 0, 0, 0})), {kNan, 0, 0.5, 2});
  p.expect(binary("atan2", x, y),
           {std::atan2(7, 2), std::atan2(-7, 2), std::atan2(0.5, 4), std::atan2(2, -3)}, kRough);
  const Value i = p.ints({3}, {12, -7, 5}), j = p.ints({3}, {10, 2, 1});
  p.expect_ints(logical_and(i, j), {8, 0, 1});
  p.expect_ints(logical_or(i, j), {14, -5, 5});
  p.expect_ints(logical_xor(i, j), {6, -5, 4});
  p.expect_ints(logical_not(i), {-13, 6, -6});
  p.expect_ints(div(i, j), {1, -3, 5});
  p.expect_ints(rem(i, j), {2, -1, 0});
  p.expect_ints(binary("shift_left", j, j), {10240, 8, 2});
  p.expect_ints(binary("shift_right_arithmetic", i, j), {0, -2, 2});
  p.expect_ints(binary("shift_right_logical", i, j), {0, 0x3FFFFFFE, 2});
  const Value s = p.input(DType::Pred, {4}, {0, 0, 1, 1}),
              t = p.input(DType::Pred, {4}, {0, 1, 0, 1});
  p.expect_ints(logical_and(s, t), {0, 0, 0, 1});
  p.expect_ints(logical_or(s, t), {0, 1, 1, 1});
  p.expect_ints(logical_xor(s, t), {0, 1, 1, 0});
  p.expect_ints(logical_not(s), {1, 1, 0, 0});
  p.run();
}

TEST(HloOps, CompareSelectClamp) {
  Program p;
  const Value x = p.floats({4}, {1, 2, 3, kNan}), y = p.floats({4}, {2, 2, 2, 2});
  p.expect_ints(compare(Direction::EQ, x, y), {0, 1, 0, 0});
  p.expect_ints(compare(Direction::NE, x, y), {1, 0, 1, 1});
  p.expect_ints(compare(Direction::LT, x, y), {1, 0, 0, 0});
  p.expect_ints(compare(Direction::LE, x, y), {1, 1, 0, 0});
  p.expect_ints(compare(Direction::GT, x, y), {0, 0, 1, 0});
  p.expect_ints(compare(Direction::GE, x, y), {0, 1, 1, 0});
  const Value big = dense_ints(p.b, std::vector<int64_t>{-1, 1}, {DType::U64, {2}});
  p.expect_ints(compare(Direction::GT, big, one(p.b, big.type())), {1, 0});
  // Of constants, which the compiler folds.
  const Value minus = scalar_int(p.b, -1, DType::S32), none = scalar_int(p.b, 0, DType::S32);
  p.expect_ints(compare(Direction::GE, minus, none), {0});
  p.expect_ints(max(minus, none), {0});
  p.expect(max(scalar(p.b, 7, DType::F32), scalar(p.b, kNan, DType::F32)), {kNan});
  p.expect(select(compare(Direction::LT, x, y), x, y), {1, 2, 2, 2});
  p.expect(select(p.input(DType::Pred, {}, {1}), x, y), {1, 2, 3, kNan});
  p.expect(clamp(p.floats({}, {1.5}), x, p.floats({}, {2.5})), {1.5, 2, 2.5, kNan});
  p.expect(clamp(p.floats({4}, {0, 3, 0, 0}), x, p.floats({4}, {0, 4, 9, 9})), {0, 3, 3, kNan});
  p.expect_ints(is_finite(p.floats({4}, {1, kInf, -kInf, kNan})), {1, 0, 0, 0});
  p.run();
}

TEST(HloOps, Conversions) {
  Program p;
  const Value x = p.floats({3}, {2.75, -2.75, 0});
  EXPECT_EQ(convert(x, DType::F32).id(), x.id());
  p.expect_ints(convert(x, DType::S32), {2, -2, 0});
  p.expect_ints(convert(x, DType::Pred), {1, 1, 0});
  for (DType dtype : {DType::F16, DType::BF16, DType::F64, DType::F8E5M2, DType::F8E5M2FNUZ,
                      DType::F8E4M3FN, DType::F8E4M3FNUZ}) {
    const bool narrow = dtype == DType::F8E5M2 || dtype == DType::F8E5M2FNUZ;
    p.expect(convert(convert(x, dtype), DType::F32), {narrow ? 3 : 2.75, narrow ? -3 : -2.75, 0});
  }
  for (DType dtype : {DType::S4, DType::S8, DType::S16, DType::S64}) {
    p.expect(convert(convert(x, dtype), DType::F32), {2, -2, 0});
  }
  for (DType dtype : {DType::U4, DType::U8, DType::U16, DType::U32, DType::U64}) {
    p.expect(convert(convert(abs(x), dtype), DType::F32), {2, 2, 0});
  }
  p.expect_bits(bitcast_convert(p.floats({2}, {1, -2}), {DType::U32, {2}}),
                {0x3F800000, 0xC0000000});
  const Value halves = bitcast_convert(p.floats({2}, {1, -2}), {DType::U16, {2, 2}});
  p.expect_bits(halves, {0, 0x3F80, 0, 0xC000});
  p.expect(bitcast_convert(halves, {DType::F32, {2}}), {1, -2});
  p.run();
}

TEST(HloOps, Complex) {
  Program p;
  for (DType part : {DType::F32, DType::F64}) {
    const Value z = complex(p.input(part, {3}, {3, 0, 0}), p.input(part, {3}, {-4, 2, 0}));
    EXPECT_EQ(z.dtype(), complex_of(part));
    p.expect(real(z), {3, 0, 0});
    p.expect(imag(z), {-4, 2, 0});
    p.expect(abs(z), {5, 2, 0}, kRough);
    p.expect(real(mul(z, z)), {-7, -4, 0}, kRough);
    p.expect(imag(mul(z, z)), {-24, 0, 0}, kRough);
    p.expect_ints(compare(Direction::EQ, z, zero(p.b, z.type())), {0, 0, 1});
    p.expect(convert(z, DType::F32), {3, 0, 0});
    // True unless both parts are zero.
    p.expect_ints(convert(z, DType::Pred), {1, 1, 0});
    p.expect(imag(convert(z, part == DType::F32 ? DType::C128 : DType::C64)), {-4, 2, 0});
  }
  const Value x = p.floats({2}, {1, 2});
  EXPECT_EQ(real(x).id(), x.id());
  p.expect(imag(x), {0, 0});
  p.expect(imag(convert(x, DType::C64)), {0, 0});
  p.run();
}

TEST(HloOps, Broadcast) {
  Program p;
  const Value x = p.floats({2}, {1, 2}), square = p.floats({2, 2}, {1, 2, 3, 4});
  p.expect(broadcast_in_dim(x, {2, 3}, array<int64_t, 1>{0}), {1, 1, 1, 2, 2, 2});
  p.expect(broadcast_in_dim(p.floats({1, 2}, {1, 2}), {2, 2}, array<int64_t, 2>{0, 1}),
           {1, 2, 1, 2});
  // A mapping may permute, even where the dimensions stay the same.
  p.expect(broadcast_in_dim(square, {2, 2}, array<int64_t, 2>{1, 0}), {1, 3, 2, 4});
  EXPECT_EQ(broadcast_in_dim(square, {2, 2}, array<int64_t, 2>{0, 1}).id(), square.id());
  p.expect(broadcast_to(x, {3, 2}), {1, 2, 1, 2, 1, 2});
  p.expect(broadcast_to(p.floats({2, 1}, {1, 2}), {2, 3}), {1, 1, 1, 2, 2, 2});
  p.expect(broadcast_to(p.floats({}, {5}), {1, 2}), {5, 5});
  p.expect(broadcast_to(p.floats({1}, {5}), {0}), {});
  p.run();
}

TEST(HloOps, Shapes) {
  Program p;
  const Value x = p.floats({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(reshape(x, {2, 3}).id(), x.id());
  p.expect(reshape(x, {3, 1, 2}), {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(transpose(x, array<int64_t, 2>{0, 1}).id(), x.id());
  p.expect(transpose(x, array<int64_t, 2>{1, 0}), {1, 4, 2, 5, 3, 6});
  p.expect(swap_middle(x), {1, 4, 2, 5, 3, 6});
  const Value four = reshape(x, {1, 2, 3, 1});
  const Value swapped = swap_middle(four);
  EXPECT_EQ(swapped.dims(), (Dims{1, 3, 2, 1}));
  p.expect(swapped, {1, 4, 2, 5, 3, 6});
  EXPECT_EQ(swapped.builder().transposed_from(swapped)->id(), four.id());
  const Value turned = transpose(four, array<int64_t, 4>{1, 0, 2, 3});
  EXPECT_EQ(turned.builder().transposed_from(turned), nullptr);
  EXPECT_EQ(reverse(x, {}).id(), x.id());
  p.expect(reverse(x, array<int64_t, 1>{1}), {3, 2, 1, 6, 5, 4});
  p.expect(reverse(x, array<int64_t, 2>{0, 1}), {6, 5, 4, 3, 2, 1});
  p.expect(slice(x, array<int64_t, 2>{1, 0}, array<int64_t, 2>{2, 3}, array<int64_t, 2>{1, 2}),
           {4, 6});
  p.expect(slice_dim(x, 1, 1, 3), {2, 3, 5, 6});
  p.expect(slice_dim(x, 1, 0, 3, 2), {1, 3, 4, 6});
  p.expect(slice_dim(x, 1, 2, 2), {});
  EXPECT_EQ(slice_dim(x, 1, 0, 3).id(), x.id());
  p.expect(concatenate(array{x, p.floats({2, 1}, {7, 8}), slice_dim(x, 1, 0, 0)}, 1),
           {1, 2, 3, 7, 4, 5, 6, 8});
  EXPECT_EQ(concatenate(array{x}, 0).id(), x.id());
  const Value one_index = p.ints({}, {1}), late = p.ints({}, {9});
  p.expect(dynamic_slice(x, array{one_index, one_index}, {1, 2}), {5, 6});
  p.expect(dynamic_slice(x, array{late, one_index}, {1, 1}), {5});  // clamped
  p.expect(dynamic_update_slice(x, p.floats({1, 2}, {8, 9}), array{one_index, one_index}),
           {1, 2, 3, 4, 8, 9});
  p.run();
}

TEST(HloOps, UpdatesFromSelf) {
  const auto program = [](const std::function<Value(Program&, const Value&)>& update,
                          const std::vector<double>& expected) {
    Program p;
    p.b.set_lacks({.updates_from_self = true});
    const Value x = reshape(p.floats({6}, {1, 2, 3, 4, 5, 6}), {2, 3});
    const Value zero = p.ints({}, {0}), one = p.ints({}, {1});
    p.expect(dynamic_update_slice(x, update(p, x), array{one, zero}), expected);
    p.run();
  };
  const auto other = [](Program& p, const Value&) { return p.floats({1, 3}, {7, 8, 9}); };
  const auto row = [](Program&, const Value& x) { return slice_dim(x, 0, 0, 1); };
  const auto late = [](Program& p, const Value&) { return p.floats({1, 2}, {8, 9}); };
  program(other, {1, 2, 3, 7, 8, 9});
  program(row, {1, 2, 3, 1, 2, 3});
  program(late, {1, 2, 3, 8, 9, 6});
}

TEST(HloOps, MayRead) {
  Program p;
  const Value line = p.floats({6}, {1, 2, 3, 4, 5, 6}), other = p.floats({6}, {1, 2, 3, 4, 5, 7});
  const Value x = reshape(line, {2, 3});
  EXPECT_TRUE(p.b.may_read(slice_dim(x, 0, 0, 1), x));
  EXPECT_TRUE(p.b.may_read(slice_dim(line, 0, 0, 3), x));
  EXPECT_TRUE(p.b.may_read(slice_dim(reshape(line, {3, 2}), 0, 0, 1), neg(x)));
  EXPECT_TRUE(p.b.may_read(slice_dim(add(line, line), 0, 0, 3), add(line, line)));
  EXPECT_FALSE(p.b.may_read(slice_dim(other, 0, 0, 3), x));
  EXPECT_FALSE(p.b.may_read(other, slice_dim(line, 0, 0, 3)));
}

TEST(HloOps, Pad) {
  Program p;
  using A = array<int64_t, 1>;
  const Value x = p.floats({3}, {1, 2, 3}), z = p.floats({}, {0.5});
  EXPECT_EQ(pad(x, z, A{0}, A{0}, A{0}).id(), x.id());
  p.expect(pad(x, z, A{1}, A{2}, A{0}), {0.5, 1, 2, 3, 0.5, 0.5});
  p.expect(pad(x, z, A{-1}, A{1}, A{0}), {2, 3, 0.5});
  p.expect(pad(x, z, A{0}, A{0}, A{1}), {1, 0.5, 2, 0.5, 3});
  // As long as before, and something else.
  p.expect(pad(x, z, A{0}, A{-2}, A{1}), {1, 0.5, 2});
  p.expect(pad(p.floats({0}, {}), z, A{1}, A{1}, A{3}), {0.5, 0.5});
  p.run();
}

TEST(HloOps, ElementwiseErrors) {
  Program p;
  const Value x = p.floats({2}, {1, 2}), n = p.ints({2}, {1, 2}), wide = p.floats({3}, {1, 2, 3});
  EXPECT_EQ(error_of([&] { add(x, n); }),
            "stablehlo.add: expected two operands of one type, got tensor<2xf32> and "
            "tensor<2xi32>. Convert or broadcast one of them.");
  expect_error([&] { compare(Direction::LT, x, wide); },
               "stablehlo.compare: expected two operands of one type, got tensor<2xf32> and "
               "tensor<3xf32>");
  expect_error(
      [&] { chlo_binary("zeta", x, Value()); },
      "chlo.zeta: expected two operands of one type, got tensor<2xf32> and a value that was "
      "never built");
  expect_error([&] { unary("tanh", Value()); }, "stablehlo.tanh: expected an operand");
  const Value z = convert(x, DType::C64);
  EXPECT_EQ(
      error_of([&] { compare(Direction::GE, z, z); }),
      "stablehlo.compare: expected EQ or NE for complex operands, which have no order, got GE "
      "of tensor<2xcomplex<f32>>.");
  EXPECT_EQ(error_of([&] { select(x, x, x); }),
            "stablehlo.select: expected a condition of tensor<2xi1> or tensor<i1>, got "
            "tensor<2xf32>.");
  expect_error([&] { select(convert(wide, DType::Pred), x, x); }, "got tensor<3xi1>");
  expect_error([&] { clamp(wide, x, x); }, "stablehlo.clamp: expected bounds of");
  expect_error([&] { is_finite(n); }, "stablehlo.is_finite: expected floats");
  EXPECT_EQ(error_of([&] { complex(n, n); }),
            "stablehlo.complex: expected parts of f32 or f64, got tensor<2xi32>.");
  expect_error(
      [&] { bitcast_convert(x, {DType::U16, {2}}); },
      "stablehlo.bitcast_convert: expected a result of the same bits as tensor<2xf32>, got "
      "tensor<2xui16>");
  expect_error([&] { bitcast_convert(x, {DType::F64, {2}}); }, "got tensor<2xf64>");
}

TEST(HloOps, ShapeErrors) {
  Program p;
  using A = array<int64_t, 2>;
  const Value x = p.floats({2, 3}, {1, 2, 3, 4, 5, 6}), i = p.ints({}, {0});
  EXPECT_EQ(error_of([&] { reshape(x, {4}); }),
            "stablehlo.reshape: expected as many elements as tensor<2x3xf32> has, got [4].");
  expect_error([&] { broadcast_in_dim(x, {2, 3}, array<int64_t, 1>{0}); },
               "expected one target dimension for each dimension of tensor<2x3xf32>, got [0]");
  EXPECT_EQ(
      error_of([&] { broadcast_in_dim(x, {3, 2}, A{0, 1}); }),
      "stablehlo.broadcast_in_dim: expected dimensions of tensor<2x3xf32> that are 1 or those "
      "of [3, 2] they are mapped to, got the mapping [0, 1].");
  expect_error([&] { broadcast_in_dim(x, {2, 3}, A{0, 2}); }, "got the mapping [0, 2]");
  expect_error([&] { broadcast_in_dim(slice_dim(x, 1, 0, 1), {2, 2}, A{0, 0}); },
               "the mapping [0, 0]");
  EXPECT_EQ(error_of([&] { broadcast_to(x, {3}); }),
            "broadcast_to: expected at least the dimensions of tensor<2x3xf32>, got [3].");
  EXPECT_EQ(error_of([&] { transpose(x, A{0, 0}); }),
            "stablehlo.transpose: expected a permutation of the dimensions of tensor<2x3xf32>, got "
            "[0, 0].");
  expect_error([&] { transpose(x, A{0, -1}); }, "got [0, -1]");
  expect_error([&] { reverse(x, A{0, 2}); }, "expected a dimension of tensor<2x3xf32>, got 2");
  expect_error([&] { reverse(x, A{1, 1}); }, "stablehlo.reverse: expected each dimension once");
  EXPECT_EQ(error_of([&] { slice_dim(x, 1, 1, 4); }),
            "stablehlo.slice: expected 0 <= start <= limit <= size and a positive stride in "
            "dimension 1 of tensor<2x3xf32>, got start 1, limit 4, stride 1.");
  expect_error([&] { slice_dim(x, 1, 0, 2, 0); }, "stride 0");
  expect_error([&] { slice_dim(x, 2, 0, 1); }, "stablehlo.slice: expected a dimension");
  expect_error([&] { slice(x, A{0, 0}, A{1, 1}, array<int64_t, 1>{1}); },
               "expected one stride for each");
  expect_error([&] { concatenate({}, 0); }, "stablehlo.concatenate: expected at least one operand");
  EXPECT_EQ(error_of([&] { concatenate(array{x, slice_dim(x, 1, 0, 1)}, 0); }),
            "stablehlo.concatenate: expected operands that differ in dimension 0 only, got "
            "tensor<2x3xf32> and tensor<2x1xf32>.");
  expect_error([&] { concatenate(array{x, i}, 0); },
               "expected operands of rank 2, got tensor<i32>");
  const Value z = p.floats({}, {0});
  expect_error([&] { pad(x, i, A{0, 0}, A{0, 0}, A{0, 0}); }, "as padding, got tensor<i32>");
  expect_error([&] { pad(x, z, A{-3, 0}, A{0, 0}, A{0, 0}); }, "expected a size of at least 0");
  expect_error([&] { pad(x, z, A{0, 0}, A{0, 0}, array<int64_t, 1>{0}); }, "one interior padding");
  EXPECT_EQ(
      error_of([&] { dynamic_slice(x, array{i}, {1, 1}); }),
      "stablehlo.dynamic_slice: expected one start for each dimension of tensor<2x3xf32>, got "
      "1.");
  expect_error([&] { dynamic_slice(x, array{i, z}, {1, 1}); }, "starts, got tensor<f32>");
  expect_error([&] { dynamic_slice(x, array{i, i}, {3, 1}); },
               "expected sizes within tensor<2x3xf32>");
  expect_error([&] { dynamic_update_slice(x, p.floats({3, 1}, {1, 2, 3}), array{i, i}); },
               "expected an update within tensor<2x3xf32>, got tensor<3x1xf32>");
}

}  // namespace
}  // namespace torch_xla::hlo::testing
