// StableHLO and CHLO operations as functions on values: result types are inferred where they follow
// from the operands, and taken as an argument elsewhere. A misfit throws util::Error.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>

#include "hlo/builder.h"

namespace torch_xla::hlo {

// --- constants -----------------------------------------------------------------------------
Value splat(Builder& b, double value, const Type& type);       // floats, complex, ints below 2^53
Value splat_int(Builder& b, int64_t value, const Type& type);  // exact; takes bits as well
Value scalar(Builder& b, double value, DType dtype);
Value scalar_int(Builder& b, int64_t value, DType dtype);
Value zero(Builder& b, const Type& type);
Value one(Builder& b, const Type& type);
Value lowest(Builder& b, const Type& type);   // -inf where the type has it, else its minimum
Value highest(Builder& b, const Type& type);  // +inf where the type has it, else its maximum
Value finite_highest(Builder& b, const Type& type);
Value dense_ints(Builder& b, std::span<const int64_t> values, const Type& type);
Value dense_floats(Builder& b, std::span<const double> values, const Type& type);
// `bytes` are the elements in row-major order, as they lie in the memory of a little-endian host.
Value dense_bytes(Builder& b, std::span<const char> bytes, const Type& type);
Value iota(Builder& b, const Type& type, int64_t dim);

// --- elementwise ---------------------------------------------------------------------------
// One operand, same result type: "negate", "exponential", "tanh", "not", ...
Value unary(std::string_view stablehlo_name, const Value& x);
// Two operands of one type, same result type: "add", "maximum", "and", ...
Value binary(std::string_view stablehlo_name, const Value& x, const Value& y);
// CHLO counterparts ("erf", "lgamma", "digamma", "tan", "asin", ...; "zeta", "polygamma", ...).
Value chlo_unary(std::string_view chlo_name, const Value& x);
Value chlo_binary(std::string_view chlo_name, const Value& x, const Value& y);

inline Value add(const Value& x, const Value& y) { return binary("add", x, y); }
inline Value sub(const Value& x, const Value& y) { return binary("subtract", x, y); }
inline Value mul(const Value& x, const Value& y) { return binary("multiply", x, y); }
inline Value div(const Value& x, const Value& y) { return binary("divide", x, y); }
inline Value rem(const Value& x, const Value& y) { return binary("remainder", x, y); }
inline Value pow(const Value& x, const Value& y) { return binary("power", x, y); }
inline Value max(const Value& x, const Value& y) { return binary("maximum", x, y); }
inline Value min(const Value& x, const Value& y) { return binary("minimum", x, y); }
inline Value logical_and(const Value& x, const Value& y) { return binary("and", x, y); }
inline Value logical_or(const Value& x, const Value& y) { return binary("or", x, y); }
inline Value logical_xor(const Value& x, const Value& y) { return binary("xor", x, y); }
inline Value logical_not(const Value& x) { return unary("not", x); }
inline Value neg(const Value& x) { return unary("negate", x); }
inline Value exp(const Value& x) { return unary("exponential", x); }
inline Value log(const Value& x) { return unary("log", x); }
inline Value sqrt(const Value& x) { return unary("sqrt", x); }
inline Value rsqrt(const Value& x) { return unary("rsqrt", x); }
inline Value tanh(const Value& x) { return unary("tanh", x); }
inline Value logistic(const Value& x) { return unary("logistic", x); }
Value abs(const Value& x);  // real result for complex operands

enum class Direction { EQ, NE, LT, LE, GT, GE };
Value compare(Direction direction, const Value& x, const Value& y);
Value select(const Value& pred, const Value& on_true, const Value& on_false);
Value convert(const Value& x, DType dtype);  // identity where the type is already right
Value bitcast_convert(const Value& x, const Type& type);
Value is_finite(const Value& x);
Value complex(const Value& real, const Value& imag);
Value real(const Value& x);
Value imag(const Value& x);

// --- shape ---------------------------------------------------------------------------------
Value broadcast_in_dim(const Value& x, const Dims& dims, std::span<const int64_t> mapping);
// NumPy-style broadcast: trailing dimensions line up.
Value broadcast_to(const Value& x, const Dims& dims);
Value reshape(const Value& x, const Dims& dims);
Value transpose(const Value& x, std::span<const int64_t> permutation);
// For a matrix its transpose; for four dimensions, the second and the third change places.
Value swap_middle(const Value& x);
Value reverse(const Value& x, std::span<const int64_t> dims);
Value slice(const Value& x, std::span<const int64_t> start, std::span<const int64_t> limit,
            std::span<const int64_t> stride);
// Cuts one dimension only.
Value slice_dim(const Value& x, int64_t dim, int64_t start, int64_t limit, int64_t stride = 1);
Value concatenate(std::span<const Value> parts, int64_t dim);
Value pad(const Value& x, const Value& padding_scalar, std::span<const int64_t> low,
          std::span<const int64_t> high, std::span<const int64_t> interior);
Value dynamic_slice(const Value& x, std::span<const Value> starts, const Dims& sizes);
Value dynamic_update_slice(const Value& x, const Value& update, std::span<const Value> starts);

// --- structured ----------------------------------------------------------------------------
// The body of a reduction over scalars: (accumulator, element) -> accumulator.
using Combine = std::function<Value(const Value&, const Value&)>;
Value reduce(const Value& x, const Value& init, std::span<const int64_t> dims,
             const Combine& combine);
// Several operands reduced together; `combine` gets accumulators then elements.
Values reduce(std::span<const Value> xs, std::span<const Value> inits,
              std::span<const int64_t> dims,
              const std::function<Values(std::span<const Value>, std::span<const Value>)>& combine);

struct Window {  // one entry per dimension of the operand
  Dims sizes, strides, base_dilations, window_dilations, pad_low, pad_high;
  explicit Window(size_t rank)
      : sizes(rank, 1),
        strides(rank, 1),
        base_dilations(rank, 1),
        window_dilations(rank, 1),
        pad_low(rank, 0),
        pad_high(rank, 0) {}
};
Value reduce_window(const Value& x, const Value& init, const Window& window,
                    const Combine& combine);
Values reduce_window(
    std::span<const Value> xs, std::span<const Value> inits, const Window& window,
    const std::function<Values(std::span<const Value>, std::span<const Value>)>& combine);

struct DotDims {
  Dims lhs_batch, rhs_batch, lhs_contract, rhs_contract;
};
// Computes in the builder's precision, as convolutions do.
Value dot_general(const Value& lhs, const Value& rhs, const DotDims& dims, DType result);

struct ConvDims {  // positions of the batch, feature and spatial dimensions
  int64_t input_batch, input_feature;
  Dims input_spatial;
  int64_t kernel_input_feature, kernel_output_feature;
  Dims kernel_spatial;
  int64_t output_batch, output_feature;
  Dims output_spatial;
};
struct ConvOptions {  // spatial entries, except the group counts
  Dims strides, pad_low, pad_high, lhs_dilation, rhs_dilation;
  std::vector<bool> reversal;
  int64_t feature_groups = 1, batch_groups = 1;
};
Value convolution(const Value& lhs, const Value& rhs, const ConvDims& dims,
                  const ConvOptions& options, const Type& result);

struct GatherDims {
  Dims offset_dims, collapsed_slice_dims, operand_batching_dims, start_indices_batching_dims,
      start_index_map;
  int64_t index_vector_dim = 0;
};
Value gather(const Value& operand, const Value& indices, const GatherDims& dims,
             std::span<const int64_t> slice_sizes, const Type& result,
             bool indices_are_sorted = false);
struct ScatterDims {
  Dims update_window_dims, inserted_window_dims, input_batching_dims, scatter_indices_batching_dims,
      scatter_dims_to_operand_dims;
  int64_t index_vector_dim = 0;
};
// `combine` gets (current, update).
Value scatter(const Value& operand, const Value& indices, const Value& updates,
              const ScatterDims& dims, const Combine& combine, bool indices_are_sorted = false,
              bool unique_indices = false);

Value select_and_scatter(const Value& operand, const Value& source, const Value& init,
                         const Window& window, const Combine& select, const Combine& scatter);
// Sorts all operands along `dim`; `less` gets (a0, b0, a1, b1, ...) and returns a predicate.
Values sort(std::span<const Value> operands, int64_t dim, bool stable,
            const std::function<Value(std::span<const Value>)>& less);
// Computes only the branch that a 0-dim predicate chooses. Branches may read values from outside.
Values conditional(const Value& pred, std::span<const Type> types,
                   const std::function<Values()>& on_true, const std::function<Values()>& on_false);

Values while_loop(std::span<const Value> init,
                  const std::function<Value(std::span<const Value>)>& condition,
                  const std::function<Values(std::span<const Value>)>& body);
Value clamp(const Value& low, const Value& x, const Value& high);

// Returns the triangular factor of positive definite matrices, the last two dimensions of x, of
// which it reads one triangle. The other triangle of the result may hold anything; where a matrix
// has no factor, the result is nan.
Value cholesky(const Value& x, bool lower);
// Solves op(A) X = B, or X op(A) = B, over the last two dimensions; other dimensions are equal.
struct TriangularOptions {
  bool left = true, lower = true, unit_diagonal = false;
  std::string_view transpose_a = "NO_TRANSPOSE";  // or "TRANSPOSE", "ADJOINT"
};
Value triangular_solve(const Value& a, const Value& b, const TriangularOptions& options);

// Fourier-transforms the last dimensions; `lengths` are those of the real or unhalved signal.
// `kind` is "FFT" or "IFFT" (of complex numbers), "RFFT" (of real ones) or "IRFFT" (to real ones);
// the inverse ones divide by the number of elements.
Value fft(const Value& x, std::string_view kind, std::span<const int64_t> lengths);

Values call(Builder& b, std::string_view function, std::span<const Value> operands,
            std::span<const Type> results);
// Calls a typed FFI handler; `config` is MLIR dictionary text such as `{key = "x"}`. `aliases`
// holds pairs (output, operand) that share one buffer.
Values custom_call(Builder& b, std::string_view target, std::span<const Value> operands,
                   std::span<const Type> results, std::string_view config,
                   bool has_side_effect = false,
                   std::span<const std::pair<int64_t, int64_t>> aliases = {});

}  // namespace torch_xla::hlo
