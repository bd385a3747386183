// Donation by hand: the user offers the memory of data to the next run that reads it, whoever else
// refers to the data. What a run has taken so is gone: who reads it then is told.
#pragma once

#include <cstdint>
#include <vector>

#include "lazy/node.h"

namespace torch_xla::executor {

struct Program;

// Offers data, or takes the offer back. Returns false for what is no data: a call that waits. The
// caller of these two holds the GraphLock.
bool offer(const lazy::Value& value, bool is_offered);
bool is_offered(const lazy::Value& value);
uint64_t num_offers();  // how many there were so far

// Tells whether reads take what is offered. Syncs do, and calls of torch.compile.
bool reads_take_offers();
void set_reads_take_offers(bool they_do);

// Data that a run was given by hand, and the leaf that had it. Kept until the run has ended.
struct GivenAway {
  c10::weak_intrusive_ptr<lazy::Node> leaf;
  lazy::DeviceData data;
};
// Called when a run of the program on `inputs` has been launched or put off: what it takes over of
// what was offered is gone.
std::vector<GivenAway> give_away(const Program& program,
                                 const std::vector<const lazy::Node*>& inputs);
// Called where that run has failed or is given up: what is still there is the leaves' again.
void give_back(const std::vector<GivenAway>& given);

}  // namespace torch_xla::executor
