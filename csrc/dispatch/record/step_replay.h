// StepReplay, what one run of a Python function recorded. It can be recorded again, for tensors
// of the same geometries, without the function.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "dispatch/record/function_trace.h"
#include "dispatch/record/places.h"
#include "dispatch/record/value_checks.h"
#include "executor/program.h"

namespace torch_xla::dispatch {

class StepReplay {
  // The checks of values on arguments, which have these storages in the place of their own.
  struct Checks {
    at::Tensor stand_in(const at::Tensor& tensor, const Layout& arguments);
    bool pass(const Storages& storages) const;

    std::unordered_map<size_t, c10::intrusive_ptr<lazy::Storage>> stand_ins;
    std::vector<ValueCheck> checks;
  };

 public:
  // Watches one run, from its constructor to finish(). All values of the tensors that the function
  // can reach are data by then.
  class Watch {
   public:
    // Throws where the tensors cannot be those of a step: of several devices, or with values that
    // wait or are one and the same.
    Watch(int device, Tensors reachable);

    // Returns what the run has recorded. `results`: tensors that it returns or leaves in places
    // where others can find them. Throws where it cannot be recorded again: it has read values,
    // drawn from a generator of its own, or keeps a tensor that is neither reachable nor a result.
    std::unique_ptr<StepReplay> finish(const Tensors& results) const;

   private:
    const int device_;
    const Tensors reachable_;
    const Layout before_;
    const std::vector<uint32_t> versions_;
    std::vector<uint64_t> leaves_;  // the ids of the storages' nodes
    const lazy::RandomState::Position random_;
    const uint64_t start_ = lazy::id_boundary();
    const uint64_t runs_;
    const uint64_t offers_;
    Checks checks_;
    const ValueCheckLog log_{
        [this](const at::Tensor& tensor) { return checks_.stand_in(tensor, before_); }};
  };

  // Returns whether the step can be recorded for these tensors: they have the geometries of those
  // that were watched, and no value that is known would make a call raise.
  bool fits(const Tensors& arguments) const;
  // Records the step for tensors that fit, whose storages then wait for their new values, and
  // returns its results.
  Tensors record(const Tensors& arguments) const;

 private:
  // What is written, in the order of the last writes: a storage of the arguments, or a new one.
  struct Written {
    size_t storage;
    executor::Recipe::Operand value;
  };

  Taken arguments_;
  Checks checks_;
  std::vector<size_t> inputs_;  // of the recipe: storages, then constants
  std::vector<c10::intrusive_ptr<lazy::Storage>> constants_;
  executor::Recipe recipe_;
  std::vector<lazy::Numbers> numbers_;  // of each call, with the seeds of the run that was watched
  std::vector<Written> written_;
  std::vector<const lazy::Geometry*> made_;
  std::vector<Given> results_;
  Writes writes_;
  Draws draws_;
};

}  // namespace torch_xla::dispatch
