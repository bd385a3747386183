// What the operations of hlo/ops.h check before they print: a wrong call fails at the rule that
// makes it, where the compiler would name a line of text. Only for the files behind hlo/ops.h.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "hlo/builder.h"
#include "util/error.h"

namespace torch_xla::hlo {

// What stands in messages for values and dimensions.
std::string show(const Value& x);
std::string show(std::span<const int64_t> dims);

void check_same_type(std::string_view op, const Value& x, const Value& y);
// That the operation is one of the specification for elements of this kind.
void check_elements(std::string_view op, const Value& x);
void check_dim(std::string_view op, const Value& x, int64_t dim);
// Each within the rank of `x`, none twice.
void check_dims(std::string_view op, const Value& x, std::span<const int64_t> dims);
// One entry for each dimension of `x`.
void check_per_dim(std::string_view op, std::string_view what, const Value& x,
                   std::span<const int64_t> given);

inline Type scalar_of(const Value& x) { return {x.dtype(), {}}; }

}  // namespace torch_xla::hlo
