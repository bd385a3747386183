// Checks the rule of donation, which Graph::choose_reuse() follows.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "executor/run/in_flight.h"

namespace torch_xla::executor {

// Each level includes the levels before it.
enum class DonationCheck : uint8_t {
  Off,
  Search,  // looks after each run for calls that read what it has taken over
  Poison,  // overwrites the memory that a run takes over; the default of debug builds
};
DonationCheck donation_check();
void set_donation_check(DonationCheck check);

// Holds the copies that one run takes over in place of arrays, and overwrites the memory of the
// arrays, so that whoever goes on reading it, behind PJRT's back too, reads wrong values.
class StandIns {
 public:
  explicit StandIns(int device) : device_(device) {}

  const pjrt::Array* of(std::shared_ptr<pjrt::Array> array);
  // Overwrites the arrays whose copies the run took over. Called when the run is launched, or its
  // launch has failed. Adds the copies to what is kept until the run has ended.
  void poison_taken(InFlight::Arrays& kept);

 private:
  int device_;
  std::vector<std::pair<std::shared_ptr<pjrt::Array>, std::shared_ptr<pjrt::Array>>> copies_;
};

// Throws if a call that waits to be computed reads one of these arrays.
void check_no_readers(const InFlight::Arrays& taken_over, int device);

}  // namespace torch_xla::executor
