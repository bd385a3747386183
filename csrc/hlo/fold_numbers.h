// Folds what programs make of numbers for people to read: a scalar constant, its conversion and its
// broadcast become one constant.
#pragma once

#include <deque>
#include <string>

#include "hlo/generic.h"

namespace torch_xla::hlo {

// `texts` keeps what the operations then refer to.
void fold_numbers(Block& function, std::deque<std::string>& texts);

}  // namespace torch_xla::hlo
