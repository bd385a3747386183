// Records a training step as a program for every compiler, from state and arguments to results and
// new state: what torch_xla.saved_step builds on.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dispatch/functions/recorded_function.h"
#include "spmd/sharding.h"

namespace torch_xla::dispatch {

struct RecordedStep {
  // StableHLO. It takes the arguments, `states`, and the random state if `draws`; it gives the
  // results, the new values of the states that are `written`, and the new random state. What is
  // written takes over the buffer of what it replaces.
  std::string text;
  std::vector<at::Tensor> states;  // all of each storage that the step reads or writes
  std::vector<size_t> written;     // places in `states`
  bool draws = false;
};

// Runs `body` twice, on placeholders of the tensors `arguments` (of any device; their values are
// not read), and lowers what it records. Tensors on xla that were there before hold their values
// again afterwards. Throws what `body` throws, and where the step is not one program: it needs
// values, runs calls on the host, writes its arguments, gives a tensor that is not of xla; where
// its two calls differ, in a number that Python has computed, say; and where a call leaves a new
// tensor to the next. `platform` is the one that the program is for; ops::kPortable: all. A program
// for one platform is partitioned where something is split: the states, what the body says of
// values, or the arguments, as `shardings` says, which is of the first of them or all.
RecordedStep record_step(const Tensors& arguments, Body body, std::string_view platform,
                         std::vector<const spmd::Sharding*> shardings = {});

// Runs `body` once in that way and drops what it records: tensors that it has made and that are
// still there have no value.
void rehearse_step(const Tensors& arguments, Body body);

}  // namespace torch_xla::dispatch
