// Draws, the random seeds that a call of a recorded function takes: so many as a run of its body
// would, of which its calls use some.
#pragma once

#include <vector>

#include "lazy/function.h"
#include "lazy/rng.h"

namespace torch_xla::dispatch {

class Draws {
 public:
  Draws() = default;
  // Throws where a call has a seed that is not among those between two positions of a state.
  Draws(const lazy::Function& function, lazy::RandomState::Position start,
        lazy::RandomState::Position end);

  size_t count() const { return count_; }
  const std::vector<size_t>& used() const { return used_; }
  size_t num_used() const { return used_.size(); }
  // Draws from the device's state and returns the seeds that the calls use, in their order.
  lazy::Numbers draw(int device) const;

 private:
  size_t count_ = 0;
  std::vector<size_t> used_;
};

}  // namespace torch_xla::dispatch
