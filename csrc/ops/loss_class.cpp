// Losses against class indices, and their gradients.
#include <array>

#include <ATen/core/Reduction.h>
#include <ATen/native/LossMulti.h>

#include "ops/loss.h"
#include "ops/meta.h"
#include "ops/value_checks.h"

namespace torch_xla::ops {
namespace {

using hlo::Dims;
using hlo::DType;
using hlo::Value;
using hlo::Values;

// Scores [N, C, positions..] against targets [N, positions..]; a single sample counts as a batch.
struct Classes {
  Value scores;   // [N, C, P]
  Value targets;  // [N, P], S32 or S64
  Value weight;   // [C], maybe none
  int64_t classes() const { return scores.dim(1); }
  const Dims& flat() const { return targets.dims(); }
};

Classes classes(const Lowering& l, size_t self, DType compute) {
  const Value x = l.in(self), t = l.in(self + 1);
  const bool batched = x.rank() > 1;
  const int64_t n = batched ? x.dim(0) : 1, c = x.dim(batched ? 1 : 0);
  const int64_t positions =
      n * c == 0 ? t.type().elements() / std::max<int64_t>(n, 1) : x.type().elements() / (n * c);
  Classes k;
  k.scores = hlo::convert(hlo::reshape(x, {n, c, positions}), compute);
  k.targets = hlo::convert(hlo::reshape(t, {n, positions}), DType::S64);
  if (l.has(self + 2)) k.weight = hlo::convert(l.in(self + 2), compute);
  return k;
}

// [N, P] spread over the classes.
Value over_classes(const Classes& k, const Value& x) {
  return hlo::broadcast_in_dim(x, k.scores.dims(), std::array<int64_t, 2>{0, 2});
}
// True at each sample's class: [N, C, P].
Value is_class(const Classes& k, const Value& targets) {
  hlo::Builder& b = targets.builder();
  return hlo::equal(hlo::iota(b, {targets.dtype(), k.scores.dims()}, 1), over_classes(k, targets));
}

// The score of each sample's class: [N, P]. Targets out of range read some class.
Value target_scores(const Classes& k) {
  const auto [n, p] = std::pair(k.flat()[0], k.flat()[1]);
  const hlo::GatherDims dims{.offset_dims = {},
                             .collapsed_slice_dims = {1},
                             .operand_batching_dims = {0, 2},
                             .start_indices_batching_dims = {0, 1},
                             .start_index_map = {1},
                             .index_vector_dim = 2};
  return hlo::gather(k.scores, hlo::reshape(k.targets, {n, p, 1}), dims, Dims{1, 1, 1},
                     k.scores.type().with(k.flat()));
}

// Entries of a vector [C] at class indices [N, P].
Value entries(const Value& vector, const Value& indices) {
  const hlo::GatherDims dims{.offset_dims = {},
                             .collapsed_slice_dims = {0},
                             .operand_batching_dims = {},
                             .start_indices_batching_dims = {},
                             .start_index_map = {0},
                             .index_vector_dim = 2};
  Dims index_dims = indices.dims();
  index_dims.push_back(1);
  return hlo::gather(vector, hlo::reshape(indices, index_dims), dims, Dims{1},
                     vector.type().with(indices.dims()));
}

// The weight of each sample: zero where it is ignored.
Value sample_weights(const Classes& k, int64_t ignore_index) {
  hlo::Builder& b = k.targets.builder();
  const hlo::Type type{k.scores.dtype(), k.flat()};
  const Value weights = k.weight ? entries(k.weight, k.targets) : hlo::one(b, type);
  const Value ignored = hlo::equal(k.targets, hlo::splat_int(b, ignore_index, k.targets.type()));
  return hlo::select(ignored, 0, weights);
}

// (self, target, weight, reduction, ignore_index) -> (output, total_weight)
Values nll_loss(Lowering& l) {
  const DType compute = compute_dtype(l.in(0).dtype());
  const Classes k = classes(l, 0, compute);
  const Reduction r = reduction(l, 3);
  if (k.scores.type().elements() == 0) {  // no samples: the mean is 0/0
    const Value none = hlo::zero(l.b, l.out(0));
    return results(l, Values{r == Reduction::Mean ? none / none : none, hlo::zero(l.b, l.out(1))});
  }
  const Value weights = sample_weights(k, l.integer(4));
  // An ignored sample adds nothing, also where its score is not finite.
  const Value losses = hlo::select(hlo::not_equal(weights, 0), -target_scores(k) * weights, 0);
  const Value total = reduce_sum(weights, all_dims(2));
  if (r == Reduction::None) {
    return results(l, Values{hlo::reshape(losses, l.out(0).dims), hlo::zero(l.b, l.out(1))});
  }
  const Value sum = reduce_sum(losses, all_dims(2));
  return results(l, Values{r == Reduction::Mean ? sum / total : sum, total});
}

// (grad_output, self, target, weight, reduction, ignore_index, total_weight)
Values nll_loss_backward(Lowering& l) {
  const DType compute = compute_dtype(l.in(1).dtype());
  const Classes k = classes(l, 1, compute);
  if (k.scores.type().elements() == 0) return {hlo::zero(l.b, l.out())};
  const Reduction r = reduction(l, 4);
  Value grad = hlo::convert(l.in(0), compute);
  if (r == Reduction::Mean) grad = grad / hlo::convert(hlo::reshape(l.in(6), {}), compute);
  grad = r == Reduction::None ? hlo::reshape(grad, k.flat())
                              : hlo::broadcast_to(hlo::reshape(grad, {}), k.flat());
  const Value weights = sample_weights(k, l.integer(5));
  const Value slope = hlo::select(hlo::not_equal(weights, 0), -grad * weights, 0);
  const Value y = hlo::select(is_class(k, k.targets), over_classes(k, slope), 0);
  return result(l, hlo::reshape(y, l.out().dims));
}

// --- margins -------------------------------------------------------------------------------

// One sample per row: [N, C].
Value rows(const Value& x, DType dtype) {
  const int64_t n = x.rank() > 1 ? x.dim(0) : 1;
  return hlo::convert(hlo::reshape(x, {n, n == 0 ? x.dim(x.rank() - 1) : x.type().elements() / n}),
                      dtype);
}

// Losses [N] of samples, reduced to the result.
Values reduced_samples(const Lowering& l, const Value& losses, Reduction r) {
  const Value y = reduced(losses, r);
  return result(l, r == Reduction::None ? hlo::reshape(y, l.out().dims) : y);
}

struct Margins {
  Value distance;   // [N, C]: how far each class violates the margin; may be negative
  Value is_target;  // [N, C]
  Value weight;     // [N, C] of the sample's class, maybe none
  int64_t power;
};

// (self, target, p, margin, weight, reduction), from position `self` on.
Margins margins(const Lowering& l, size_t self, DType compute) {
  const Value x = rows(l.in(self), compute);
  const int64_t n = x.dim(0), c = x.dim(1);
  const Value t = hlo::convert(hlo::reshape(l.in(self + 1), {n}), DType::S64);
  const auto over = [&](const Value& v) {
    return hlo::broadcast_in_dim(v, x.dims(), std::array<int64_t, 1>{0});
  };
  Margins m;
  m.power = l.integer(self + 2);
  m.is_target = hlo::equal(hlo::iota(l.b, {DType::S64, {n, c}}, 1), over(t));
  const Value own = reduce_sum(hlo::select(m.is_target, x, 0), std::array<int64_t, 1>{1});
  m.distance = x - over(own) + number_like(l, self + 3, x);
  if (l.has(self + 4)) {
    const Value w = entries(hlo::convert(l.in(self + 4), compute), hlo::reshape(t, {n, 1}));
    m.weight = over(hlo::reshape(w, {n}));
  }
  return m;
}

Values multi_margin_loss(Lowering& l) {
  const DType compute = compute_dtype(l.in(0).dtype());
  if (l.in(0).type().elements() == 0) return {hlo::zero(l.b, l.out())};
  const Margins m = margins(l, 0, compute);
  Value z = hlo::max(m.distance, hlo::like(m.distance, 0));
  if (m.power == 2) z = hlo::square(z);
  if (m.weight) z = z * m.weight;
  z = hlo::select(m.is_target, 0, z) / static_cast<double>(z.dim(1));
  return reduced_samples(l, reduce_sum(z, std::array<int64_t, 1>{1}), reduction(l, 5));
}

// (grad_output, self, target, p, margin, weight, reduction)
Values multi_margin_loss_backward(Lowering& l) {
  const DType compute = compute_dtype(l.in(1).dtype());
  if (l.in(1).type().elements() == 0) return {hlo::zero(l.b, l.out())};
  const Margins m = margins(l, 1, compute);
  const int64_t n = m.distance.dim(0);
  Value slope = m.power == 2 ? 2 * m.distance : hlo::like(m.distance, 1);
  if (m.weight) slope = slope * m.weight;
  slope = hlo::select(hlo::greater(m.distance, 0) & (~m.is_target), slope, 0) /
          static_cast<double>(m.distance.dim(1));
  const Value own = -reduce_sum(slope, std::array<int64_t, 1>{1});
  const std::array<int64_t, 1> batch = {0};
  slope = hlo::select(m.is_target, hlo::broadcast_in_dim(own, slope.dims(), batch), slope);
  const Reduction r = reduction(l, 6);
  const Value grad = r == Reduction::None ? hlo::reshape(l.in(0), {n}) : hlo::reshape(l.in(0), {});
  const Value g = spread_gradient(grad, {n}, compute, r, n);
  return result(l,
                hlo::reshape(slope * hlo::broadcast_in_dim(g, slope.dims(), batch), l.out().dims));
}

// Multilabel targets are lists of classes that end at the first -1.
struct Multilabel {
  Value x;          // [N, C]
  Value listed;     // [N, J, C]: entry j of the list is this class
  Value is_target;  // [N, C]
  Value violation;  // [N, J, C]: 1 - (score of entry j - score of the class)
  Value counts;     // [N, J, C]: listed entries against classes that are no targets, violated
};

Multilabel multilabel(const Lowering& l, size_t self, DType compute) {
  Multilabel m;
  m.x = rows(l.in(self), compute);
  const int64_t n = m.x.dim(0), c = m.x.dim(1);
  const Value t = hlo::convert(hlo::reshape(l.in(self + 1), {n, c}), DType::S64);
  const hlo::Type place{DType::S64, {n, c}}, cube{DType::S64, {n, c, c}};
  const Value j = hlo::iota(l.b, place, 1);
  const Value end = reduce_min(hlo::select(hlo::less(t, 0), j, static_cast<double>(c)),
                               std::array<int64_t, 1>{1});
  const Value valid =
      hlo::less(j, hlo::broadcast_in_dim(end, place.dims, std::array<int64_t, 1>{0}));
  const std::array<int64_t, 2> by_entry = {0, 1}, by_class = {0, 2};
  const auto entry = [&](const Value& v) { return hlo::broadcast_in_dim(v, cube.dims, by_entry); };
  const auto each = [&](const Value& v) { return hlo::broadcast_in_dim(v, cube.dims, by_class); };
  m.listed = hlo::equal(hlo::iota(l.b, cube, 2), entry(t)) & entry(valid);
  m.is_target = hlo::reduce(m.listed, hlo::scalar(l.b, 0, DType::Pred), std::array<int64_t, 1>{1},
                            hlo::logical_or);
  const Value score = reduce_sum(hlo::select(m.listed, each(m.x), 0), std::array<int64_t, 1>{2});
  m.violation = 1 - entry(score) + each(m.x);
  m.counts = entry(valid) & (~each(m.is_target)) & hlo::greater(m.violation, 0);
  return m;
}

// (self, target, reduction) -> (output, is_target)
Values multilabel_margin_loss(Lowering& l) {
  const DType compute = compute_dtype(l.in(0).dtype());
  if (l.in(0).type().elements() == 0) {
    return {hlo::zero(l.b, l.out(0)), hlo::zero(l.b, l.out(1))};
  }
  const Multilabel m = multilabel(l, 0, compute);
  const Value losses =
      reduce_sum(hlo::select(m.counts, m.violation, 0), std::array<int64_t, 2>{1, 2}) /
      static_cast<double>(m.x.dim(1));
  const Reduction r = reduction(l, 2);
  const Value y = reduced(losses, r);
  return results(l, Values{r == Reduction::None ? hlo::reshape(y, l.out(0).dims) : y,
                           hlo::reshape(m.is_target, l.out(1).dims)});
}

// (grad_output, self, target, reduction, is_target)
Values multilabel_margin_loss_backward(Lowering& l) {
  const DType compute = compute_dtype(l.in(1).dtype());
  if (l.in(1).type().elements() == 0) return {hlo::zero(l.b, l.out())};
  const Multilabel m = multilabel(l, 1, compute);
  const int64_t n = m.x.dim(0);
  const Value ones = hlo::convert(m.counts, compute);
  const Value by_class = reduce_sum(ones, std::array<int64_t, 1>{1});
  const Value by_entry = hlo::broadcast_in_dim(reduce_sum(ones, std::array<int64_t, 1>{2}),
                                               ones.dims(), std::array<int64_t, 2>{0, 1});
  const Value own = reduce_sum(hlo::select(m.listed, by_entry, 0), std::array<int64_t, 1>{1});
  const Value slope = (by_class - own) / static_cast<double>(m.x.dim(1));
  const Reduction r = reduction(l, 3);
  const Value grad = r == Reduction::None ? hlo::reshape(l.in(0), {n}) : hlo::reshape(l.in(0), {});
  const Value g = hlo::broadcast_in_dim(spread_gradient(grad, {n}, compute, r, n), slope.dims(),
                                        std::array<int64_t, 1>{0});
  return result(l, hlo::reshape(slope * g, l.out().dims));
}

// (scores, target, p, margin, weight, reduction)
void multi_margin_loss_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0), target = call.tensor(1);
  if (target.scalar_type() != at::kLong) return call.pytorch();
  const c10::Scalar p = call[2].toScalar();
  TORCH_CHECK(p.equal(1) || p.equal(2), "only p == 1 and p == 2 supported");
  int64_t samples = 0, classes = 0;
  at::native::multi_margin_loss_shape_check(samples, classes, x.dim(), x, target,
                                            call[4].toOptional<at::Tensor>());
  const bool each = call[5].toInt() == at::Reduction::None && target.dim() != 0;
  call.results({each ? meta_of_sizes(x, {samples}) : meta_of_sizes(x, {})});
}

// (scores, target, reduction)
void multilabel_margin_loss_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0), target = call.tensor(1);
  if (target.scalar_type() != at::kLong) return call.pytorch();
  int64_t samples = 0, classes = 0;
  at::native::multilabel_margin_loss_shape_check(samples, classes, x.dim(), x, target);
  const bool each = call[2].toInt() == at::Reduction::None && target.dim() == 2;
  call.results({each ? meta_of_sizes(x, {samples}) : meta_of_sizes(x, {}),
                meta_of_sizes(x, target.sizes().vec())});
}

// (scores, target, weight, ..)
void weights_of_classes(const Arguments& a) {
  const c10::IValue& weight = a[2];
  if (weight.isNone() || !weight.toTensor().defined()) return;
  const at::ScalarType wanted = a.tensor(0).scalar_type();
  TORCH_CHECK(weight.toTensor().scalar_type() == wanted, "expected scalar type ", wanted,
              " but found ", weight.toTensor().scalar_type());
}

// (scores [N, C, ..] or [C], target, weight, reduction, ignore_index, ..)
bool classes(const KnownArguments& a) {
  const at::Tensor& scores = a.tensor(0);
  const int64_t end = scores.size(scores.dim() == 1 ? 0 : 1);
  return leaves(a, a[1], {0, end, a[4].toInt()});
}

// (scores [.., C], target, ..); `First` is the smallest target
template <int64_t First>
bool last_classes(const KnownArguments& a) {
  return leaves(a, a[1], {First, size_of_dim(a.tensor(0), -1)});
}

}  // namespace

const Rules loss_class_rules([](Registry& r) {
  r.add("aten::nll_loss_forward", nll_loss);
  r.add("aten::nll_loss_backward", nll_loss_backward);
  r.add("aten::nll_loss2d_forward", nll_loss);
  r.add("aten::nll_loss2d_backward", nll_loss_backward);
  r.add("aten::multi_margin_loss", multi_margin_loss).static_numbers = {2};
  r.add("aten::multi_margin_loss_backward", multi_margin_loss_backward).static_numbers = {3};
  r.add("aten::multilabel_margin_loss_forward", multilabel_margin_loss);
  r.add("aten::multilabel_margin_loss_backward", multilabel_margin_loss_backward);

  r.all("aten::nll_loss_forward") = {.checks_call = weights_of_classes, .suspects_values = classes};
  r.all("aten::nll_loss2d_forward") = {
      .checks_call = weights_of_classes, .layout = row_major, .suspects_values = classes};
  r.all("aten::multi_margin_loss") = {.meta = multi_margin_loss_meta,
                                      .suspects_values = last_classes<0>};
  r.all("aten::multilabel_margin_loss_forward") = {.meta = multilabel_margin_loss_meta,
                                                   .suspects_values = last_classes<-1>};
  for (const char* name : {"aten::multi_margin_loss_backward",
                           "aten::multilabel_margin_loss_backward", "aten::_ctc_loss_backward"}) {
    r.all(name).meta = like_second;
  }
  // With lengths that are numbers, not tensors.
  r.one("aten::_ctc_loss").known_shape = true;
  r.all("aten::ctc_loss").autocast = Autocast::Float32;
});

}  // namespace torch_xla::ops
