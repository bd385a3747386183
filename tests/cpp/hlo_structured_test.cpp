// Operations with regions or structured attributes: values as the compiled program computes them.
#include <algorithm>
#include <array>

#include "hlo_testing.h"
#include "xla/ffi/api/ffi.h"

namespace torch_xla::hlo::testing {
namespace {

using std::array;

TEST(HloStructured, Reduce) {
  Program p;
  const Value x = p.floats({2, 3}, {1, 5, 3, 4, 2, 6}), zero_f = scalar(p.b, 0, DType::F32);
  p.expect(hlo::reduce(x, zero_f, array<int64_t, 1>{0}, add), {5, 7, 9});
  p.expect(hlo::reduce(x, zero_f, array<int64_t, 2>{0, 1}, add), {21});
  p.expect(hlo::reduce(x, zero_f, {}, add), {1, 5, 3, 4, 2, 6});
  p.expect(hlo::reduce(x, lowest(p.b, {DType::F32, {}}), array<int64_t, 1>{1}, max), {5, 6});
  p.expect(
      hlo::reduce(slice_dim(x, 1, 0, 0), scalar(p.b, 7, DType::F32), array<int64_t, 1>{1}, add),
      {7, 7});
  const Value flags = compare(Direction::GT, x, splat(p.b, 2, x.type()));
  p.expect_ints(hlo::reduce(flags, one(p.b, {DType::Pred, {}}), array<int64_t, 1>{1}, logical_and),
                {0, 0});
  p.expect_ints(hlo::reduce(flags, zero(p.b, {DType::Pred, {}}), array<int64_t, 1>{0}, logical_or),
                {1, 1, 1});
  // The largest and its position, together.
  const Value at = iota(p.b, {DType::S32, {2, 3}}, 1);
  const Values best = hlo::reduce(
      array{x, at}, array{lowest(p.b, {DType::F32, {}}), scalar_int(p.b, 0, DType::S32)},
      array<int64_t, 1>{1}, [](std::span<const Value> a, std::span<const Value> e) {
        const Value keep = compare(Direction::GE, a[0], e[0]);
        return Values{select(keep, a[0], e[0]), select(keep, a[1], e[1])};
      });
  EXPECT_EQ(best[1].type().str(), "tensor<2xi32>");
  p.expect(best[0], {5, 6});
  p.expect_ints(best[1], {1, 2});
  p.run();
}

TEST(HloStructured, ReduceWindow) {
  Program p;
  const Value x = p.floats({1, 6}, {1, 5, 3, 4, 2, 6}), zero_f = scalar(p.b, 0, DType::F32);
  Window w(2);
  w.sizes = {1, 3};
  p.expect(reduce_window(x, zero_f, w, add), {9, 12, 9, 12});
  w.strides = {1, 2};
  w.pad_low = {0, 1};
  w.pad_high = {1, 2};
  const Value padded = reduce_window(x, zero_f, w, add);
  EXPECT_EQ(padded.type().str(), "tensor<2x4xf32>");
  p.expect(padded, {6, 12, 12, 6, 0, 0, 0, 0});
  Window dilated(2);
  dilated.sizes = {1, 2};
  dilated.window_dilations = {1, 3};
  p.expect(reduce_window(x, zero_f, dilated, add), {5, 7, 9});
  dilated.base_dilations = {1, 2};
  dilated.strides = {1, 2};
  p.expect(reduce_window(x, zero_f, dilated, add), {1, 5, 3, 4});
  Window too_large(2);
  too_large.sizes = {1, 7};
  p.expect(reduce_window(x, zero_f, too_large, add), {});
  Window pairs(2);
  pairs.sizes = pairs.strides = {1, 2};
  const Values both = reduce_window(array{x, neg(x)}, array{zero_f, zero_f}, pairs,
                                    [](std::span<const Value> a, std::span<const Value> e) {
                                      return Values{add(a[0], e[0]), sub(a[1], e[1])};
                                    });
  p.expect(both[0], {6, 7, 8});
  p.expect(both[1], {6, 7, 8});
  p.run();
}

TEST(HloStructured, DotGeneral) {
  Program p;
  const Value a = p.floats({2, 3}, {1, 2, 3, 4, 5, 6}), b = p.floats({3, 2}, {1, 0, 0, 1, 2, 2});
  DotDims matrix{.lhs_batch = {}, .rhs_batch = {}, .lhs_contract = {1}, .rhs_contract = {0}};
  p.expect(dot_general(a, b, matrix, DType::F32), {7, 8, 16, 17});
  for (const Precision precision : {Precision::Default, Precision::High}) {
    p.b.set_precision(precision);
    p.expect(dot_general(a, b, matrix, DType::F32), {7, 8, 16, 17});
  }
  DotDims batched{.lhs_batch = {0}, .rhs_batch = {1}, .lhs_contract = {1}, .rhs_contract = {0}};
  p.expect(dot_general(a, b, batched, DType::F32), {7, 17});
  const Value outer = dot_general(slice_dim(a, 0, 0, 1), b, {}, DType::F32);
  EXPECT_EQ(outer.type().str(), "tensor<1x3x3x2xf32>");
  p.expect(dot_general(convert(a, DType::BF16), convert(b, DType::BF16), matrix, DType::F32),
           {7, 8, 16, 17});
  p.expect_ints(dot_general(convert(a, DType::S8), convert(b, DType::S8), matrix, DType::S32),
                {7, 8, 16, 17});
  p.expect(dot_general(slice_dim(a, 1, 0, 0), slice_dim(b, 0, 0, 0), matrix, DType::F32),
           {0, 0, 0, 0});
  p.run();
}

// NCW input and OIW kernel.
constexpr auto plain_conv = [] {
  return ConvDims{.input_batch = 0,
                  .input_feature = 1,
                  .input_spatial = {2},
                  .kernel_input_feature = 1,
                  .kernel_output_feature = 0,
                  .kernel_spatial = {2},
                  .output_batch = 0,
                  .output_feature = 1,
                  .output_spatial = {2}};
};

// In 8-bit integers, and convolutions in floats, where the compiler lacks others.
TEST(HloStructured, ProductsOfIntegersInLimbs) {
  for (const DType dtype : {DType::U64, DType::S32}) {
    Program p;
    const auto mixed = [&](const Dims& dims) {
      const Type flat{DType::U64, {Type{DType::U64, dims}.elements()}};
      // Odd multiples of a large number use all bits. The compiler does not know the start.
      const Value start = broadcast_to(convert(p.ints({}, {1}), DType::U64), flat.dims);
      const Value large = splat_int(p.b, static_cast<int64_t>(0x9E3779B97F4A7C15), flat);
      return convert(reshape(mul(add(iota(p.b, flat, 0), start), large), dims), dtype);
    };
    const Value a = mixed({2, 3}), x = mixed({2, 2, 3}), k = mixed({2, 2, 2});
    ConvOptions batches;
    batches.batch_groups = 2;
    const auto products = [&](const Lacks& lacks) {
      p.b.set_lacks(lacks);
      return Values{dot_general(a, a, {{0}, {0}, {1}, {1}}, dtype),
                    convolution(x, k, plain_conv(), batches, {dtype, {1, 2, 2}})};
    };
    const Values plain = products({});
    for (const Lacks& lacks : {Lacks{.wide_products = true}, Lacks{.integer_convolutions = true}}) {
      const Values limbs = products(lacks);
      for (size_t i = 0; i < plain.size(); ++i) {
        const Value same = compare(Direction::EQ, plain[i], limbs[i]);
        p.expect_ints(same, std::vector<int64_t>(plain[i].type().elements(), 1));
      }
    }
    p.run();
  }
}

TEST(HloStructured, Convolution) {
  Program p;
  const auto f32 = [](Dims dims) { return Type{DType::F32, std::move(dims)}; };
  const Value x = p.floats({1, 1, 5}, {1, 2, 3, 4, 5}), k = p.floats({1, 1, 2}, {1, 10});
  p.expect(convolution(x, k, plain_conv(), {}, f32({1, 1, 4})), {21, 32, 43, 54});
  ConvOptions strided;
  strided.strides = {2};
  strided.pad_low = {1};
  strided.pad_high = {0};
  p.expect(convolution(x, k, plain_conv(), strided, f32({1, 1, 3})), {10, 32, 54});
  ConvOptions dilated;
  dilated.rhs_dilation = {2};
  dilated.reversal = {true};
  p.expect(convolution(x, k, plain_conv(), dilated, f32({1, 1, 3})), {13, 24, 35});
  ConvOptions spread;
  spread.lhs_dilation = {2};
  p.expect(convolution(x, k, plain_conv(), spread, f32({1, 1, 8})), {1, 20, 2, 30, 3, 40, 4, 50});
  ConvOptions grouped;
  grouped.feature_groups = 2;
  const Value two = p.floats({1, 2, 2}, {1, 2, 3, 4}), each = p.floats({2, 1, 1}, {10, 100});
  p.expect(convolution(two, each, plain_conv(), grouped, f32({1, 2, 2})), {10, 20, 300, 400});
  ConvOptions batches;
  batches.batch_groups = 2;
  const Value rows = p.floats({2, 1, 2}, {1, 2, 3, 4});
  p.expect(convolution(rows, each, plain_conv(), batches, f32({1, 2, 2})), {10, 20, 300, 400});
  // Without spatial dimensions it is a product of matrices.
  const ConvDims none{.input_batch = 0,
                      .input_feature = 1,
                      .input_spatial = {},
                      .kernel_input_feature = 1,
                      .kernel_output_feature = 0,
                      .kernel_spatial = {},
                      .output_batch = 0,
                      .output_feature = 1,
                      .output_spatial = {}};
  p.expect(
      convolution(p.floats({1, 2}, {1, 2}), p.floats({2, 2}, {1, 2, 3, 4}), none, {}, f32({1, 2})),
      {5, 11});
  p.run();
}

TEST(HloStructured, GatherScatter) {
  Program p;
  const Value x = p.floats({3, 2}, {1, 2, 3, 4, 5, 6}), rows = p.ints({2, 1}, {2, 0});
  GatherDims take{.offset_dims = {1},
                  .collapsed_slice_dims = {0},
                  .operand_batching_dims = {},
                  .start_indices_batching_dims = {},
                  .start_index_map = {0},
                  .index_vector_dim = 1};
  p.expect(gather(x, rows, take, array<int64_t, 2>{1, 2}, {DType::F32, {2, 2}}), {5, 6, 1, 2});
  p.expect(gather(x, reverse(rows, array<int64_t, 1>{0}), take, array<int64_t, 2>{1, 2},
                  {DType::F32, {2, 2}}, true),
           {1, 2, 5, 6});
  // One column of each row.
  GatherDims along{.offset_dims = {},
                   .collapsed_slice_dims = {1},
                   .operand_batching_dims = {0},
                   .start_indices_batching_dims = {0},
                   .start_index_map = {1},
                   .index_vector_dim = 1};
  p.expect(gather(x, p.ints({3, 1}, {1, 0, 1}), along, array<int64_t, 2>{1, 1}, {DType::F32, {3}}),
           {2, 3, 6});

  ScatterDims put{.update_window_dims = {1},
                  .inserted_window_dims = {0},
                  .input_batching_dims = {},
                  .scatter_indices_batching_dims = {},
                  .scatter_dims_to_operand_dims = {0},
                  .index_vector_dim = 1};
  const Value updates = p.floats({2, 2}, {10, 20, 30, 40}), twice = p.ints({2, 1}, {1, 1});
  p.expect(scatter(x, twice, updates, put, add), {1, 2, 43, 64, 5, 6});
  p.expect(scatter(
               x, rows, updates, put, [](const Value&, const Value& update) { return update; },
               false, true),
           {30, 40, 3, 4, 10, 20});
  // What lies outside is dropped.
  p.expect(scatter(x, p.ints({2, 1}, {3, -1}), updates, put, add), {1, 2, 3, 4, 5, 6});
  ScatterDims per_row{.update_window_dims = {},
                      .inserted_window_dims = {1},
                      .input_batching_dims = {0},
                      .scatter_indices_batching_dims = {0},
                      .scatter_dims_to_operand_dims = {1},
                      .index_vector_dim = 1};
  p.expect(scatter(x, p.ints({3, 1}, {1, 0, 1}), p.floats({3}, {10, 20, 30}), per_row, max),
           {1, 10, 20, 4, 5, 30});
  p.run();
}

TEST(HloStructured, SelectAndScatter) {
  Program p;
  Window w(1);
  w.sizes = w.strides = {2};
  const Value x = p.floats({4}, {1, 5, 4, 2}), zero_f = scalar(p.b, 0, DType::F32);
  const auto larger = [](const Value& a, const Value& e) { return compare(Direction::GE, a, e); };
  p.expect(select_and_scatter(x, p.floats({2}, {10, 20}), zero_f, w, larger, add), {0, 10, 20, 0});
  Window overlapping(1);
  overlapping.sizes = {3};
  overlapping.pad_low = overlapping.pad_high = {1};
  p.expect(select_and_scatter(x, p.floats({4}, {1, 2, 4, 8}), zero_f, overlapping, larger, add),
           {0, 7, 8, 0});
  p.run();
}

TEST(HloStructured, Sort) {
  Program p;
  const Value keys = p.floats({2, 3}, {3, 1, 2, 1, 1, 0});
  const Value at = iota(p.b, {DType::S32, {2, 3}}, 1);
  const Values sorted = hlo::sort(array{keys, at}, 1, true, [](std::span<const Value> args) {
    return compare(Direction::LT, args[0], args[1]);
  });
  p.expect(sorted[0], {1, 2, 3, 0, 1, 1});
  p.expect_ints(sorted[1], {1, 2, 0, 2, 0, 1});
  p.expect(hlo::sort(array{keys}, 0, false,
                     [](std::span<const Value> args) {
                       return compare(Direction::GT, args[0], args[1]);
                     })[0],
           {3, 1, 2, 1, 1, 0});
  p.run();
}

TEST(HloStructured, ControlFlow) {
  Program p;
  // The first power of two above x, and how many steps it took.
  const Value x = p.floats({}, {100});
  const Values loop = while_loop(
      array{scalar(p.b, 1, DType::F32), scalar_int(p.b, 0, DType::S32), x},
      [](std::span<const Value> s) { return compare(Direction::LE, s[0], s[2]); },
      [&](std::span<const Value> s) {
        return Values{add(s[0], s[0]), add(s[1], scalar_int(p.b, 1, DType::S32)), s[2]};
      });
  p.expect(loop[0], {128});
  p.expect_ints(loop[1], {7});
  // A loop in a loop: 3 times 4 additions.
  const Value one_i = scalar_int(p.b, 1, DType::S32);
  const auto repeat = [&](int64_t times, const Value& start,
                          const std::function<Value(const Value&)>& step) {
    return while_loop(
        array{scalar_int(p.b, 0, DType::S32), start},
        [&](std::span<const Value> s) {
          return compare(Direction::LT, s[0], scalar_int(p.b, times, DType::S32));
        },
        [&](std::span<const Value> s) { return Values{add(s[0], one_i), step(s[1])}; })[1];
  };
  p.expect_ints(repeat(3, p.ints({}, {5}),
                       [&](const Value& outer) {
                         return repeat(4, outer, [&](const Value& v) { return add(v, one_i); });
                       }),
                {17});
  // Regions without arguments, which use values from outside.
  const Type f32{DType::F32, {}};
  for (int branch : {0, 1, 2}) {
    const array regions = {
        p.b.region({}, [&](std::span<const Value>) { return Values{neg(x)}; }),
        p.b.region({}, [&](std::span<const Value>) { return Values{x}; }),
        p.b.region({}, [&](std::span<const Value>) { return Values{add(x, x)}; })};
    p.expect(p.b.op("stablehlo.case", {p.ints({}, {double(branch)})}, f32, {}, regions),
             {branch == 0 ? -100.0 : 100.0 * branch});
  }
  for (const double limit : {50.0, 200.0}) {
    const Value chosen = conditional(
        compare(Direction::LT, x, scalar(p.b, limit, DType::F32)), std::span(&f32, 1),
        [&] { return Values{neg(x)}; }, [&] { return Values{add(x, x)}; })[0];
    p.expect(chosen, {limit > 100 ? -100.0 : 200.0});
  }
  p.run();
}

namespace ffi = xla::ffi;

ffi::Error axpy(ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::F32> y, double factor,
                ffi::ResultBuffer<ffi::F32> out, ffi::ResultBuffer<ffi::S32> shared) {
  for (size_t i = 0; i < x.element_count(); ++i) {
    out->typed_data()[i] = static_cast<float>(factor) * x.typed_data()[i] + y.typed_data()[i];
  }
  // Set where the result lies in the memory of the second operand.
  *shared->typed_data() = out->typed_data() == y.typed_data();
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(axpy_handler, axpy,
                       ffi::Ffi::Bind()
                           .Arg<ffi::Buffer<ffi::F32>>()
                           .Arg<ffi::Buffer<ffi::F32>>()
                           .Attr<double>("factor")
                           .Ret<ffi::Buffer<ffi::F32>>()
                           .Ret<ffi::Buffer<ffi::S32>>());

TEST(HloStructured, CustomCall) {
  static const bool registered = pjrt::register_ffi_handler(
      *pjrt::testing::plugin(), "torch_xla_test_axpy", reinterpret_cast<void*>(axpy_handler));
  ASSERT_TRUE(registered);
  Program p;
  const Value x = p.floats({2, 2}, {1, 2, 3, 4}), y = p.floats({2, 2}, {10, 20, 30, 40});
  const array results = {x.type(), Type{DType::S32, {}}};
  const array<std::pair<int64_t, int64_t>, 1> alias = {std::pair<int64_t, int64_t>{0, 1}};
  const Values shared = custom_call(p.b, "torch_xla_test_axpy", array{x, y}, results,
                                    "{factor = 2.5 : f64}", true, alias);
  p.expect(shared[0], {12.5, 25, 37.5, 50});
  p.expect_ints(shared[1], {1});
  // A transposed operand arrives row-major, as the layouts say.
  const Values apart =
      custom_call(p.b, "torch_xla_test_axpy", array{transpose(x, array<int64_t, 2>{1, 0}), y},
                  results, "{factor = 1.0 : f64}");
  p.expect(apart[0], {11, 23, 32, 44});
  p.run();
}

TEST(HloStructured, ReductionErrors) {
  Program p;
  const Value x = p.floats({2, 3}, {1, 2, 3, 4, 5, 6}), z = scalar(p.b, 0, DType::F32);
  const Value n = scalar_int(p.b, 0, DType::S32);
  using A = array<int64_t, 1>;
  EXPECT_EQ(error_of([&] { hlo::reduce(x, n, A{0}, add); }),
            "stablehlo.reduce: expected an initial scalar of the type of tensor<2x3xf32>, got "
            "tensor<i32>.");
  expect_error([&] { hlo::reduce(x, z, A{2}, add); },
               "stablehlo.reduce: expected a dimension of tensor<2x3xf32>, got 2");
  expect_error([&] { hlo::reduce(x, z, array<int64_t, 2>{1, 1}, add); }, "each dimension once");
  expect_error([&] { hlo::reduce(std::span<const Value>(), {}, {}, {}); }, "got 0 and 0");
  EXPECT_EQ(error_of([&] {
              hlo::reduce(x, z, A{0}, [](const Value& a, const Value& e) {
                return compare(Direction::LT, a, e);
              });
            }),
            "stablehlo.reduce: expected tensor<f32> as result 0 of its reduction, got tensor<i1>.");
  expect_error(
      [&] {
        hlo::reduce(array{x, slice_dim(x, 1, 0, 1)}, array{z, z}, A{0},
                    [](std::span<const Value> a, std::span<const Value>) {
                      return Values(a.begin(), a.end());
                    });
      },
      "expected operands of the dimensions of tensor<2x3xf32>, got tensor<2x1xf32>");
  Window w(1);
  expect_error([&] { reduce_window(x, z, w, add); },
               "stablehlo.reduce_window: expected one window size for each dimension");
  Window flat(2);
  flat.strides = {1, 0};
  expect_error([&] { reduce_window(x, z, flat, add); },
               "expected positive sizes, strides and dilations in dimension 1, got 1, 0, 1 and 1");
  EXPECT_EQ(error_of([&] { select_and_scatter(x, x, z, Window(2), add, add); }),
            "stablehlo.select_and_scatter: expected tensor<i1> as result 0 of its selection, got "
            "tensor<f32>.");
  expect_error([&] { select_and_scatter(x, n, z, Window(2), add, add); },
               "expected a source of the type and rank of tensor<2x3xf32>, got tensor<i32>");
}

TEST(HloStructured, OtherErrors) {
  Program p;
  const Value x = p.floats({2, 3}, {1, 2, 3, 4, 5, 6}), rows = p.ints({2, 1}, {0, 1});
  const DotDims dot{.lhs_batch = {}, .rhs_batch = {}, .lhs_contract = {1}, .rhs_contract = {0}};
  EXPECT_EQ(error_of([&] { dot_general(x, x, dot, DType::F32); }),
            "stablehlo.dot_general: expected contracted dimensions of equal sizes, got [1] of "
            "tensor<2x3xf32> and [0] of tensor<2x3xf32>.");
  const Value image = reshape(x, {1, 2, 3}), kernel = p.floats({1, 1, 2}, {1, 1});
  expect_error([&] { convolution(x, kernel, plain_conv(), {}, {DType::F32, {1, 1, 2}}); },
               "1 spatial dimensions of the input, got rank 2 and spatial dimensions [2]");
  expect_error([&] { convolution(image, kernel, plain_conv(), {}, {DType::F32, {1, 1, 2}}); },
               "divide the input's features and batch, got tensor<1x2x3xf32>, tensor<1x1x2xf32>, 1 "
               "feature groups");
  ConvOptions two;
  two.strides = {1, 1};
  expect_error(
      [&] { convolution(image, p.floats({1, 2, 1}, {1, 1}), plain_conv(), two, image.type()); },
      "expected strides for 1 spatial dimensions, got [1, 1]");

  GatherDims take;
  take.start_index_map = {0};
  expect_error([&] { gather(x, x, take, array<int64_t, 2>{1, 1}, x.type()); },
               "stablehlo.gather: expected integer indices, got tensor<2x3xf32>");
  expect_error([&] { gather(x, rows, take, array<int64_t, 1>{1}, x.type()); },
               "expected one slice size");
  take.index_vector_dim = 3;
  expect_error([&] { gather(x, rows, take, array<int64_t, 2>{1, 1}, x.type()); },
               "expected index_vector_dim in [0, 2], got 3");
  expect_error(
      [&] { scatter(x, rows, rows, {}, add); },
      "stablehlo.scatter: expected updates of the type of tensor<2x3xf32>, got tensor<2x1xi32>");

  const auto first = [](std::span<const Value> args) { return args[0]; };
  EXPECT_EQ(error_of([&] { hlo::sort(array{x}, 0, true, first); }),
            "stablehlo.sort: expected tensor<i1> as result 0 of its comparison, got tensor<f32>.");
  expect_error([&] { hlo::sort(array{x}, 2, true, first); },
               "stablehlo.sort: expected a dimension");
  expect_error([&] { hlo::sort({}, 0, true, first); },
               "stablehlo.sort: expected at least one operand");
  expect_error([&] { hlo::sort(array{x, rows}, 0, true, first); }, "got tensor<2x1xi32>");

  const auto never = [&](std::span<const Value>) { return zero(p.b, {DType::Pred, {}}); };
  expect_error([&] { while_loop({}, never, {}); }, "stablehlo.while: expected at least one value");
  expect_error(
      [&] { while_loop(array{x}, never, [](std::span<const Value>) { return Values{}; }); },
      "expected 1 results of its body, got 0");
  expect_error([&] { while_loop(array{x}, first, {}); }, "as result 0 of its condition");
  const Type type_of_x = x.type();
  const auto gives_x = [&] { return Values{x}; };
  expect_error([&] { hlo::conditional(x, std::span(&type_of_x, 1), gives_x, gives_x); },
               "stablehlo.if: expected a predicate of type tensor<i1>");
  expect_error(
      [&] {
        hlo::conditional(zero(p.b, {DType::Pred, {}}), std::span(&type_of_x, 1), gives_x,
                         [] { return Values{}; });
      },
      "expected 1 results of its false branch, got 0");

  const Type result{DType::S32, {}};
  const array<std::pair<int64_t, int64_t>, 1> alias = {std::pair<int64_t, int64_t>{0, 0}};
  expect_error(
      [&] { custom_call(p.b, "any", array{x}, std::span(&result, 1), "{}", false, alias); },
      "stablehlo.custom_call: any: expected an output and an operand of one type");
}

}  // namespace
}  // namespace torch_xla::hlo::testing
