// Scaled dot product attention and its gradient as one call each: torch_xla::attention and
// attention_backward (dispatch/composites/attention.cpp defines them). The gradient recomputes the
// probabilities from the saved logarithm of each row's sum.
#include "ops/attention.h"

#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "ops/common.h"
#include "ops/contraction.h"
#include "ops/host_rules.h"
#include "ops/rules.h"

namespace torch_xla::ops {
namespace {

using hlo::DType;
using hlo::Value;
using hlo::Values;

// The letters of an array's dimensions. Query heads that share a key head form a group 'g', a
// dimension that keys and values lack.
struct Shape {
  std::string batch;  // 'A', 'B', ... for the leading dimensions
  std::string query, key, value, out, scores, row;
  int64_t group = 1;

  Shape(const Value& q, const Value& k) {
    for (int64_t i = 0; i + 2 < q.rank(); ++i) batch += static_cast<char>('A' + i);
    if (q.rank() > 2 && k.dim(q.rank() - 3) != 0) group = q.dim(q.rank() - 3) / k.dim(q.rank() - 3);
    const std::string heads = group == 1 ? batch : batch + "g";
    query = heads + "le";
    key = batch + "se";
    value = batch + "sv";
    out = heads + "lv";
    scores = heads + "ls";
    row = heads + "l";
  }

  // [.., H, rest] -> [.., H / g, g, rest] for an array with `tail` dimensions after the heads.
  Value grouped(const Value& x, int64_t tail) const {
    if (group == 1) return x;
    hlo::Dims dims = x.dims();
    const auto heads = dims.end() - tail - 1;
    *heads /= group;
    dims.insert(heads + 1, group);
    return hlo::reshape(x, dims);
  }
};

// Scores before the softmax, in the accumulator's type: q k^T scale, masked.
Value masked_scores(Lowering& l, const AttentionArguments& args, const Shape& shape, const Value& q,
                    const Value& k) {
  Value scores = contract(shape.grouped(q, 2), shape.query, k, shape.key, shape.scores);
  scores = scores * l.floating(args.scale);
  const double minus_infinity = -std::numeric_limits<double>::infinity();
  if (l.flag(args.is_causal)) {
    const int64_t rank = scores.rank();
    const hlo::Type positions = {DType::S32, {scores.dim(rank - 2), scores.dim(rank - 1)}};
    const Value visible =
        hlo::greater_equal(hlo::iota(l.b, positions, 0), hlo::iota(l.b, positions, 1));
    scores = hlo::select(hlo::broadcast_to(visible, scores.dims()), scores, minus_infinity);
  }
  if (l.has(args.mask)) {
    const Value mask = shape.grouped(hlo::broadcast_to(l.in(args.mask),
                                                       [&] {
                                                         hlo::Dims dims = q.dims();
                                                         dims.back() =
                                                             scores.dim(scores.rank() - 1);
                                                         return dims;
                                                       }()),
                                     2);
    scores = mask.dtype() == DType::Pred ? hlo::select(mask, scores, minus_infinity)
                                         : scores + cast(mask, scores.dtype());
  }
  return scores;
}

Value along_rows(const Value& row, const Value& like) {
  std::vector<int64_t> dims = all_dims(row.rank());
  return hlo::broadcast_in_dim(row, like.dims(), dims);
}

// Dropout keeps an element where `keep` is true and scales it by 1 / (1 - p).
Value dropped(Lowering& l, const AttentionArguments& args, const Shape& shape, const Value& x) {
  if (!l.has(args.keep)) return x;
  const double p = l.floating(args.dropout_p);
  const Value keep = shape.grouped(l.in(args.keep), 2);
  return hlo::select(keep, x * (p == 1 ? 0.0 : 1.0 / (1.0 - p)), 0.0);
}

// attention(query, key, value, mask?, keep?, dropout_p, is_causal, scale) -> (output, logsumexp)
Values attention(Lowering& l) {
  const AttentionArguments args = kAttentionForward;
  const Value q = l.in(args.query), k = l.in(args.key), v = l.in(args.value);
  const Shape shape(q, k);
  const Value scores = masked_scores(l, args, shape, q, k);
  const std::array<int64_t, 1> last = {scores.rank() - 1};
  const Value top = reduce_max(scores, last);
  // A row with nothing to look at has zero probabilities, not nan.
  const Value is_empty = hlo::equal(top, -std::numeric_limits<double>::infinity());
  const Value shift = hlo::select(is_empty, hlo::zero(l.b, top.type()), top);
  const Value weights = hlo::exp(scores - along_rows(shift, scores));
  const Value sum = reduce_sum(weights, last);
  const Value safe_sum = hlo::select(is_empty, hlo::one(l.b, sum.type()), sum);
  const Value probabilities = weights / along_rows(safe_sum, scores);
  const Value product = contract(cast(dropped(l, args, shape, probabilities), v.dtype()),
                                 shape.scores, v, shape.value, shape.out);
  const Value logsumexp = shift + hlo::log(safe_sum);
  return {hlo::reshape(cast(product, l.out(0).dtype), l.out(0).dims),
          hlo::reshape(cast(logsumexp, l.out(1).dtype), l.out(1).dims)};
}

// attention_backward(grad, query, key, value, output, logsumexp, mask?, keep?, dropout_p,
// is_causal, scale, mask_grad) -> gradients of (query, key, value, mask)
Values attention_backward(Lowering& l) {
  const AttentionArguments args = kAttentionBackward;
  const Value q = l.in(args.query), k = l.in(args.key), v = l.in(args.value);
  const DType dtype = q.dtype(), wide = accumulator(dtype);
  const Shape shape(q, k);
  const Value grad = shape.grouped(l.in(args.grad), 2), q_grouped = shape.grouped(q, 2);
  const Value scores = masked_scores(l, args, shape, q, k);
  const Value logsumexp = cast(shape.grouped(l.in(args.logsumexp), 1), wide);
  const Value p = hlo::exp(scores - along_rows(logsumexp, scores));

  const Value d_value =
      contract(cast(dropped(l, args, shape, p), dtype), shape.scores, grad, shape.out, shape.value);
  const Value d_p =
      dropped(l, args, shape, contract(grad, shape.out, v, shape.value, shape.scores));
  // The sum over a row of p * d_p; where the output is not rounded, from that.
  const std::array<int64_t, 1> last = {grad.rank() - 1};
  const Value output = shape.grouped(l.in(args.output), 2);
  const Value delta = reduce_sum(dtype == wide ? grad * output : p * d_p, last);
  const Value d_scores = p * (d_p - along_rows(delta, d_p));
  const Value narrow = cast(d_scores * l.floating(args.scale), dtype);
  const Value d_query = contract(narrow, shape.scores, k, shape.key, shape.query);
  const Value d_key = contract(narrow, shape.scores, q_grouped, shape.query, shape.key);

  Values results = {hlo::reshape(cast(d_query, dtype), q.dims()), cast(d_key, dtype),
                    cast(d_value, dtype)};
  if (!l.flag(args.mask_grad)) {
    results.push_back(hlo::zero(l.b, l.out(3)));
    return results;
  }
  // Summed over the dimensions that the mask was broadcast along.
  const Value mask = l.in(args.mask);
  hlo::Dims full = q.dims();
  full.back() = k.dim(k.rank() - 2);
  const Value d_mask = hlo::reshape(d_scores, full);
  std::vector<int64_t> broadcast;
  const int64_t missing = d_mask.rank() - mask.rank();
  for (int64_t i = 0; i < d_mask.rank(); ++i) {
    if (i < missing || (mask.dim(i - missing) == 1 && d_mask.dim(i) != 1)) broadcast.push_back(i);
  }
  const Value sum = reduce_sum(d_mask, broadcast);
  results.push_back(hlo::reshape(cast(sum, mask.dtype()), mask.dims()));
  return results;
}

// --- PyTorch's kernels ---------------------------------------------------------------------

// PyTorch's kernel widens bfloat16 where that is faster, float16 never.
bool attends(Lowering& l, const AttentionArguments& args) {
  const DType dtype = l.in(args.query).dtype();
  return dtype != DType::F16 || multiplies(dtype);
}

bool fits_flash(Lowering& l, const AttentionArguments& args) {
  const Value q = l.in(args.query), k = l.in(args.key), v = l.in(args.value);
  if (q.rank() != 4 || is_empty(l, {args.query, args.key, args.value}) || l.has(args.keep)) {
    return false;
  }
  return q.dim(1) % k.dim(1) == 0 && k.dim(1) == v.dim(1) && q.dim(3) == v.dim(3) &&
         hlo::is_float(q.dtype());
}

// The kernel wants a key head for each query head: those of a group are copies.
Value for_each_query(const Value& heads, const Value& query) {
  const int64_t group = query.dim(1) / heads.dim(1);
  if (group == 1) return heads;
  const hlo::Dims& d = heads.dims();
  const Value copies = hlo::broadcast_in_dim(heads, {d[0], d[1], group, d[2], d[3]},
                                             std::array<int64_t, 4>{0, 1, 3, 4});
  return hlo::reshape(copies, {d[0], query.dim(1), d[2], d[3]});
}

// The gradient of that: the sum over each group.
Value sum_of_queries(const Value& grad, const hlo::Type& heads) {
  if (grad.dims() == heads.dims) return grad;
  const hlo::Dims& d = heads.dims;
  const Value grouped = hlo::reshape(cast(grad, accumulator(grad.dtype())),
                                     {d[0], d[1], grad.dim(1) / d[1], d[2], d[3]});
  return cast(reduce_sum(grouped, std::array<int64_t, 1>{2}), heads.dtype);
}

// The kernel adds its mask, in the query's dtype.
std::optional<Value> additive_mask(Lowering& l, const AttentionArguments& args) {
  if (!l.has(args.mask)) return std::nullopt;
  const Value mask = l.in(args.mask), q = l.in(args.query);
  if (mask.dtype() != DType::Pred) return cast(mask, q.dtype());
  const hlo::Type type = mask.type().with(q.dtype());
  return hlo::select(mask, hlo::zero(l.b, type), hlo::lowest(l.b, type));
}

// Parts of the call take some of the batch, or some of the heads.
int64_t attention_cut(Lowering& l, const AttentionArguments& args) {
  const Value q = l.in(args.query);
  return q.dim(0) >= q.dim(1) ? 0 : 1;
}

// The order of heads in memory where the kernel or the model makes them: [batch, positions, heads,
// size].
hlo::Type laid_out(hlo::Type heads) {
  std::swap(heads.dims[1], heads.dims[2]);
  return heads;
}
int64_t laid_out(int64_t cut) { return cut == 1 ? 2 : cut; }

// The call's next argument. Where the program makes the heads by swapping dimensions, the kernel
// takes them as they lie, so that nothing is copied.
void add_heads(HostCall& call, const Value& heads, int64_t cut) {
  const Value* from = heads.builder().transposed_from(heads);
  from != nullptr ? call.transposed(*from, laid_out(cut)) : call.part(heads, cut);
}

void add_mask(HostCall& call, Lowering& l, const AttentionArguments& args, int64_t cut) {
  const std::optional<Value> mask = additive_mask(l, args);
  if (mask && mask->rank() == 4 && mask->dim(cut) != 1) {
    call.part(*mask, cut);
  } else {
    call.tensor(mask);
  }
}

Values attention_on_host(Lowering& l) {
  const AttentionArguments args = kAttentionForward;
  if (!fits_flash(l, args) || !choose_host(attends(l, args))) return xla_code(l);
  const std::optional<hlo::Type> types[] = {laid_out(l.out(0)), l.out(1)};
  const int64_t cut = attention_cut(l, args);
  HostCall call(l.b, "aten::_scaled_dot_product_flash_attention_for_cpu", Fails::Never);
  const Value q = l.in(args.query);
  add_heads(call, q, cut);
  for (const size_t heads : {args.key, args.value}) {
    add_heads(call, for_each_query(l.in(heads), q), cut);
  }
  call.fixed(0.0).fixed(l.flag(args.is_causal));
  add_mask(call, l, args, cut);
  call.fixed(l.floating(args.scale));
  return call.transposed_results(1, types, std::array{laid_out(cut), cut});
}

Values attention_backward_on_host(Lowering& l) {
  const AttentionArguments args = kAttentionBackward;
  if (!fits_flash(l, args) || l.flag(args.mask_grad) || !choose_host(attends(l, args))) {
    return xla_code(l);
  }
  const Value q = l.in(args.query);
  const Value k = for_each_query(l.in(args.key), q), v = for_each_query(l.in(args.value), q);
  const std::optional<hlo::Type> types[] = {laid_out(l.out(0)), laid_out(k.type()),
                                            laid_out(v.type())};
  const int64_t cut = attention_cut(l, args);
  HostCall call(l.b, "aten::_scaled_dot_product_flash_attention_for_cpu_backward", Fails::Never);
  for (const Value& heads : {l.in(args.grad), q, k, v, l.in(args.output)}) {
    add_heads(call, heads, cut);
  }
  call.part(l.in(args.logsumexp), cut);
  call.fixed(0.0).fixed(l.flag(args.is_causal));
  add_mask(call, l, args, cut);
  const int64_t in_memory = laid_out(cut);
  Values results = call.fixed(l.floating(args.scale))
                       .transposed_results(3, types, std::array{in_memory, in_memory, in_memory});
  for (const size_t i : {1, 2}) results[i] = sum_of_queries(results[i], l.out(i));
  results.push_back(hlo::zero(l.b, l.out(3)));
  return results;
}

}  // namespace

namespace rules {

const RuleFunction attention = ops::attention;
const RuleFunction attention_on_host = ops::attention_on_host;
const RuleFunction attention_backward = ops::attention_backward;
const RuleFunction attention_backward_on_host = ops::attention_backward_on_host;

}  // namespace rules

}  // namespace torch_xla::ops
