// Rules of operators that also have a kernel of ours: dispatch registers both in one place.
#pragma once

#include "ops/lowering.h"

namespace torch_xla::ops::rules {

// attention.cpp
extern const RuleFunction attention, attention_on_host, attention_backward,
    attention_backward_on_host;
// cast.cpp
extern const RuleFunction to_copy, optimization_barrier;
// compact.cpp
extern const RuleFunction nonzero, masked_select, unique;
// elementwise_compare.cpp
extern const RuleFunction masked_fill;
// elementwise_complex.cpp
extern const RuleFunction copy, view_as_real, view_as_complex, conj, neg_view;
// index_embedding.cpp
extern const RuleFunction one_hot;
// linear.cpp
extern const RuleFunction linear, linear_on_host;
// norm.cpp
extern const RuleFunction batch_norm_without_statistics;
// random.cpp
extern const RuleFunction bernoulli, bernoulli_tensor, bernoulli_number;
// reduce.cpp
extern const RuleFunction prod_of_all, prod_along, max_of_all, min_of_all, max_along, min_along;
// rnn.cpp
extern const RuleFunction lstm, lstm_on_host, rnn_layer, rnn_layer_backward;
// scan.cpp
extern const RuleFunction cumprod;
// shape.cpp
extern const RuleFunction same_elements, expand, permute, transpose, t, select, slice, diagonal,
    unfold, view_dtype;
// shape_join.cpp
extern const RuleFunction runs;
// shape_strided.cpp
extern const RuleFunction as_strided, as_strided_update;
// sharding.cpp
extern const RuleFunction sharding_constraint;
// sort.cpp
extern const RuleFunction median_of_all, nanmedian_of_all, median_along, nanmedian_along;

}  // namespace torch_xla::ops::rules
