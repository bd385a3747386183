// FunctionTrace, the recording of one function: what is recorded while it lives belongs to the
// function, and nothing of it happens outside.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <c10/core/AutogradState.h>

#include "dispatch/record/decompose.h"
#include "lazy/function.h"
#include "lazy/rng.h"

namespace torch_xla::dispatch {

// The random seeds that a call of a function draws: so many as its run would, of which its calls
// use some.
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

// Lives in one scope of one thread. Holds the GraphLock; the device's random state is taken back at
// its end.
class FunctionTrace {
 public:
  explicit FunctionTrace(int device);
  ~FunctionTrace();
  FunctionTrace(const FunctionTrace&) = delete;
  FunctionTrace& operator=(const FunctionTrace&) = delete;

  // Returns a new storage of this geometry, of which the function's next parameter is the value.
  c10::intrusive_ptr<lazy::Storage> parameter(const lazy::Geometry* geometry);
  // Returns a tensor of such a storage.
  at::Tensor stand_in(const lazy::Geometry* geometry);
  // Makes a placeholder that calls have read already the function's next parameter.
  void add_parameter(lazy::Value leaf) { function_->add_parameter(std::move(leaf)); }
  // Returns whether the storage of a parameter that this has made has been written.
  bool is_written(size_t parameter) const {
    return storages_[parameter]->value() != function_->placeholders[parameter];
  }
  const lazy::Value& placeholder(size_t parameter) const {
    return function_->placeholders[parameter];
  }
  // Throws where that of any has.
  void check_unwritten(const char* name) const;
  void result(lazy::Value value) { function_->results.push_back(std::move(value)); }

  struct Recorded {
    std::shared_ptr<const lazy::KeptFunction> function;
    // What it reads beside its parameters; further parameters stand for them.
    std::vector<lazy::Value> captured;
    Draws draws;

    // Returns the signature of a call whose results are those of the function.
    c10::intrusive_ptr<const lazy::Signature> signature() const;
  };
  Recorded finish();
  // What a function draws whose calls were recorded in this one's trace.
  Draws draws_of(const lazy::Function& function) const {
    return Draws(function, start_, random_.position());
  }

 private:
  // A backward pass on another thread would wait for the lock.
  class BackwardHere {
   public:
    BackwardHere() { state().set_multithreading_enabled(false); }
    ~BackwardHere() { state().set_multithreading_enabled(before_); }
    BackwardHere(const BackwardHere&) = delete;
    BackwardHere& operator=(const BackwardHere&) = delete;

   private:
    static c10::AutogradState& state() { return c10::AutogradState::get_tls_state(); }
    bool before_ = state().get_multithreading_enabled();
  };

  const lazy::GraphLock lock_;
  const BackwardHere backward_;
  const int device_;
  lazy::RandomState& random_;
  const lazy::RandomState::Position start_;
  const FunctionScope scope_;
  std::shared_ptr<lazy::KeptFunction> function_ = std::make_shared<lazy::KeptFunction>();
  std::vector<c10::intrusive_ptr<lazy::Storage>> storages_;  // of the parameters
};

}  // namespace torch_xla::dispatch
