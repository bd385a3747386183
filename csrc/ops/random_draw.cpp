#include "ops/random_draw.h"

#include <array>
#include <cmath>
#include <numbers>
#include <string>

#include "ops/notation.h"

namespace torch_xla::ops::draw {
namespace {

using hlo::Dims;
using hlo::DType;
using hlo::Type;
using hlo::Value;
using hlo::Values;

constexpr int64_t kMultiplier = 0xD256D193;  // of Philox2x32
constexpr int64_t kWeyl = 0x9E3779B9;        // added to the key in each round
constexpr int kRounds = 10;

Value shift_right(const Value& x, int64_t bits) {
  return hlo::binary("shift_right_logical", x, hlo::splat_int(x.builder(), bits, x.type()));
}

// The row-major position of every element.
Value positions(hlo::Builder& b, const Type& type) {
  Value sum = hlo::zero(b, type);
  bool empty = true;
  int64_t stride = 1;
  for (int64_t dim = type.rank() - 1; dim >= 0; --dim) {
    if (type.dims[dim] != 1) {
      Value along = hlo::iota(b, type, dim);
      if (stride != 1) along = along * hlo::splat_int(b, stride, type);
      sum = empty ? along : sum + along;
      empty = false;
    }
    stride *= type.dims[dim];
  }
  return sum;
}

Values philox(hlo::Builder& b, const Value& seed, const Dims& dims, int stream) {
  const Type narrow{DType::U32, dims}, wide{DType::U64, dims};
  const Value low = hlo::convert(seed, DType::U32);
  Value high = hlo::convert(shift_right(seed, 32), DType::U32);
  if (stream != 0) {
    high = high + hlo::splat_int(b, (stream * kWeyl) & 0xFFFFFFFF, high.type());
  }

  Value key = low;
  Value x = positions(b, narrow);
  Value y = hlo::broadcast_to(high, dims);
  if (narrow.elements() > (int64_t{1} << 32)) {
    const Value position = positions(b, wide);
    x = hlo::convert(position, DType::U32);
    y = y + hlo::convert(shift_right(position, 32), DType::U32);
  }
  const Value multiplier = hlo::splat_int(b, kMultiplier, wide);
  for (int round = 0; round < kRounds; ++round) {
    if (round != 0) key = key + hlo::splat_int(b, kWeyl, key.type());
    const Value product = hlo::convert(x, DType::U64) * multiplier;
    const Value product_high = hlo::convert(shift_right(product, 32), DType::U32);
    x = hlo::logical_xor(hlo::logical_xor(product_high, hlo::broadcast_to(key, dims)), y);
    y = hlo::convert(product, DType::U32);
  }
  return {x, y};
}

// A number that fits in the positive half of a signed integer; converting a signed one is cheaper.
Value to_float(const Value& bits, DType dtype) {
  const DType integer = hlo::bit_width(bits.dtype()) == 32 ? DType::S32 : DType::S64;
  return hlo::convert(hlo::bitcast_convert(bits, bits.type().with(integer)), dtype);
}

// A random sign and a tail probability in (0, 1/2): together one draw of a symmetric distribution.
// `center` is 1 - 2 * tail without the loss of digits near the median.
struct Tail {
  Value negative, tail, center;
};
Tail tail_of(const Value& bits, DType dtype) {
  hlo::Builder& b = bits.builder();
  const int64_t width = static_cast<int64_t>(hlo::bit_width(bits.dtype()));
  const int64_t low_bits = static_cast<int64_t>(~uint64_t{0} >> (65 - width));
  const Value mask = hlo::splat_int(b, low_bits, bits.type());
  const Value magnitude = bits & mask;
  const double unit = std::ldexp(1.0, static_cast<int>(1 - width));
  return {hlo::not_equal(magnitude, bits), (to_float(magnitude, dtype) + 0.5) * (unit / 2),
          (to_float(hlo::logical_xor(magnitude, mask), dtype) + 0.5) * unit};
}

Value signed_by(const Value& negative, const Value& x) { return hlo::select(negative, -x, x); }

// The quantile of the normal distribution as center * P(w), w = -log(4 tail (1 - tail)): a
// polynomial of degree 8 in w below 5.5 and in sqrt(w) above, fitted for f32.
Value normal_quantile(const Tail& t) {
  constexpr double kSplit = 5.5, kNearShift = 2.75, kFarShift = 3.5284477378338064;
  constexpr std::array<double, 9> kNear = {
      1.697994100879896e-08,  4.983846224604349e-07,  -3.861426648654742e-06,
      -1.240444998984458e-05, 0.00029646026086993515, -0.0014708481030538678,
      -0.0071229515597224236, 0.34553632140159607,    2.210118532180786};
  constexpr std::array<double, 9> kFar = {
      2.73859786830144e-05,   -0.00025841983733698726, 0.0006647185073234141,
      -0.0009235530160367489, 0.0013500411296263337,   -0.0027213965076953173,
      0.004406037740409374,   1.424888253211975,       4.757619857788086};
  const Value w = -hlo::log((t.tail * 4.0) * (1.0 - t.tail));
  const Value near = hlo::less(w, kSplit);
  const Value v = hlo::select(near, w - kNearShift, hlo::sqrt(w) - kFarShift);
  const auto coefficient = [&](size_t i) {
    return hlo::select(near, hlo::like(w, kNear[i]), hlo::like(w, kFar[i]));
  };
  Value polynomial = coefficient(0);
  for (size_t i = 1; i < kNear.size(); ++i) polynomial = polynomial * v + coefficient(i);
  return signed_by(t.negative, polynomial * t.center);
}

}  // namespace

Words words(const Value& seed, const Dims& dims, int stream) {
  hlo::Builder& b = seed.builder();
  std::string name = "philox";
  for (const int64_t dim : dims) name += "_" + std::to_string(dim);
  if (stream != 0) name += "_stream" + std::to_string(stream);
  const std::array<Type, 1> arguments = {seed.type()};
  b.private_function(name, arguments,
                     [&](std::span<const Value> args) { return philox(b, args[0], dims, stream); });
  const Type type{DType::U32, dims};
  const std::array<Type, 2> results = {type, type};
  const Values both = hlo::call(b, name, std::span<const Value>(&seed, 1), results);
  return {both[0], both[1]};
}

Value word64(const Value& seed, const Dims& dims, int stream) {
  const Words w = words(seed, dims, stream);
  const Value high = hlo::convert(w.first, DType::U64);
  const Value shift = hlo::splat_int(seed.builder(), 32, high.type());
  return hlo::binary("shift_left", high, shift) | hlo::convert(w.second, DType::U64);
}

Value uniform(const Value& seed, const Type& type, int stream) {
  if (type.dtype == DType::F64) {
    return to_float(shift_right(word64(seed, type.dims, stream), 11), DType::F64) * 0x1p-53;
  }
  return to_float(shift_right(words(seed, type.dims, stream).first, 8), DType::F32) * 0x1p-24;
}

Value positive_uniform(const Value& seed, const Type& type, int stream) {
  if (type.dtype == DType::F64) {
    const Value bits = shift_right(word64(seed, type.dims, stream), 1);
    return (to_float(bits, DType::F64) + 0.5) * 0x1p-63;
  }
  const Value bits = shift_right(words(seed, type.dims, stream).first, 1);
  return (to_float(bits, DType::F32) + 0.5) * 0x1p-31;
}

Value normal(const Value& seed, const Type& type, int stream) {
  if (type.dtype == DType::F64) {  // Box and Muller: exact, and rare enough to be slow
    const Value radius = hlo::sqrt(hlo::log(positive_uniform(seed, type, 2 * stream)) * -2.0);
    const Value turn = uniform(seed, type, 2 * stream + 1);
    return radius * hlo::cos(turn * (2 * std::numbers::pi));
  }
  return normal_quantile(tail_of(words(seed, type.dims, stream).first, DType::F32));
}

Value exponential(const Value& seed, const Type& type, int stream) {
  const Value x = -hlo::log(positive_uniform(seed, type, stream));
  const double half_step = type.dtype == DType::F64 ? 0x1p-54 : 0x1p-25;
  return hlo::max(x, hlo::like(x, half_step));
}

Value cauchy(const Value& seed, const Type& type, int stream) {
  const Tail t = type.dtype == DType::F64
                     ? tail_of(word64(seed, type.dims, stream), DType::F64)
                     : tail_of(words(seed, type.dims, stream).first, DType::F32);
  return signed_by(t.negative, 1.0 / hlo::chlo_unary("tan", t.tail * std::numbers::pi));
}

Value bernoulli(const Value& seed, const Dims& dims, const Value& probability) {
  const Value threshold = hlo::convert(hlo::floor(probability * 0x1p31 + 0.5), DType::S64);
  const Value bits = shift_right(words(seed, dims).first, 1);
  return hlo::less(bits, hlo::broadcast_to(hlo::convert(threshold, DType::U32), dims));
}

Value integers(const Value& seed, const Dims& dims, uint64_t range) {
  hlo::Builder& b = seed.builder();
  const Type wide{DType::U64, dims}, result{DType::S64, dims};
  const Value bound = hlo::splat_int(b, static_cast<int64_t>(range), wide);
  Value value;
  if (range == 0) {
    value = word64(seed, dims);
  } else if (range <= (uint64_t{1} << 32)) {
    value = shift_right(hlo::convert(words(seed, dims).first, DType::U64) * bound, 32);
  } else {
    value = hlo::rem(word64(seed, dims), bound);
  }
  return hlo::bitcast_convert(value, result);
}

}  // namespace torch_xla::ops::draw
