// Checks operands of the operations in hlo/ops.h before they print, so that a wrong call fails in
// the rule that makes it; the compiler would name a line of text. Only the files behind hlo/ops.h
// include this one.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "hlo/builder.h"
#include "util/error.h"

namespace torch_xla::hlo {

// Print values and dimensions for messages.
std::string show(const Value& x);
std::string show(std::span<const int64_t> dims);

void check_same_type(std::string_view op, const Value& x, const Value& y);
// Checks that the specification has the operation for elements of this kind.
void check_elements(std::string_view op, const Value& x);
void check_dim(std::string_view op, const Value& x, int64_t dim);
// Checks that all are within the rank of `x` and none is there twice.
void check_dims(std::string_view op, const Value& x, std::span<const int64_t> dims);
// Checks that `given` has one entry for each dimension of `x`.
void check_per_dim(std::string_view op, std::string_view what, const Value& x,
                   std::span<const int64_t> given);

inline Type scalar_of(const Value& x) { return {x.dtype(), {}}; }

}  // namespace torch_xla::hlo
