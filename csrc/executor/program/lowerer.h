// Lowerer, which turns the calls of functions into operations.
#pragma once

#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <c10/util/FunctionRef.h>

#include "executor/program/interface.h"
#include "executor/program/manual_run.h"
#include "executor/program/marked_calls.h"
#include "executor/program/stretch.h"
#include "lazy/function.h"
#include "ops/lowering.h"
#include "ops/manual_sharding.h"
#include "util/flags.h"

namespace torch_xla::executor {

// Turns calls into operations. Expansions of decomposed operators nest.
class Lowerer {
  using Call = lazy::Function::Call;
  using Function = lazy::Function;
  using Geometry = lazy::Geometry;
  using Signature = lazy::Signature;

 public:
  Lowerer(hlo::Builder& builder, const ops::Target& target,
          bool with_locations = util::flag::XLA_HLO_DEBUG())
      : b_(builder), target_(target), with_locations_(with_locations) {}

  // Packed numbers, cut one by one as calls ask for them.
  struct Packed {
    hlo::Value array;
    hlo::Values cut;  // where they have been cut already
    int64_t next = 0;

    hlo::Value take() {
      const int64_t i = next++;
      return cut.empty() ? hlo::reshape(hlo::slice_dim(array, 0, i, i + 1), {}) : cut[i];
    }
  };
  struct NumberSource {
    Packed floats, ints;
    bool all_constant = false;            // numbers and seeds are what the calls were recorded with
    std::vector<hlo::Values> seeds = {};  // but for these, of each call
  };

  // From now on the results of the program's calls are split so.
  void set_splits(const ValueSplits* splits) { splits_ = splits; }
  // From now on lines after the calls name their results.
  void name_results() { names_results_ = true; }

  // The results of the function that `manual` is of, on these arguments: for a manual parameter, an
  // array with an entry for every device. Its numbers come from `source`; without one they are
  // constants but for the seeds, which are given.
  hlo::Values lower(ops::ManualValues manual, const hlo::Values& arguments, NumberSource* source,
                    std::span<const hlo::Value> seeds = {});
  // What a stretch of it gives, of its inputs.
  hlo::Values lower(const Function& function, const Stretch& stretch, const hlo::Values& arguments,
                    NumberSource& source);

  // What the rule of a call gives, whatever the signature says of it.
  hlo::Values apply_rule(const Signature& s, const hlo::Values& operands,
                         const hlo::Values& numbers);

  // A call by itself, of these tensors and of numbers that are all zero. A boundary of manual code
  // is one in the programs of a mesh alone.
  void lower_alone(const Signature& s, const hlo::Values& tensors);

 private:
  using Results = std::vector<hlo::Values>;  // by Ref::index

  // A function whose calls are being lowered.
  struct Frame {
    const Function& function;
    ops::ManualValues manual;
    NumberSource* source;               // null: within a call of the program
    std::span<const hlo::Value> seeds;  // that calls within one have yet to take
    Results results;

    Frame(ops::ManualValues of, NumberSource* numbers, std::span<const hlo::Value> drawn)
        : function(of.function()),
          manual(std::move(of)),
          source(numbers),
          seeds(drawn),
          results(function.num_values()) {}
  };
  class At;  // gives what is built in its life the place of a call

  hlo::Values results_of(Frame& frame, const hlo::Values& arguments);
  void lower_calls(Frame& frame, std::span<const uint32_t> calls);
  void lower_marked(Frame& frame);
  void lower_composite(const Composite& composite, Frame& frame);
  hlo::Values& lower_call(Frame& frame, uint32_t index);
  hlo::Values lower_mixed(Frame& frame, const Call& call, const hlo::Values& operands,
                          const hlo::Values& numbers);
  void lower_manual(const ManualRun& run, Frame& frame,
                    c10::function_ref<bool(uint32_t)> is_read_later);
  hlo::Values lower_signature(const Signature& s, const hlo::Values& operands,
                              const hlo::Values& numbers);

  hlo::Values operands_of(const Call& call, const Function& function, const Results& results,
                          const hlo::Values& numbers) const;
  template <class F>
  hlo::Values operands_of(const Signature& s, const hlo::Values& numbers, F&& tensor) const;
  hlo::Values numbers_of(Frame& frame, uint32_t index);
  hlo::Value runtime_number(NumberSource& source, lazy::NumberKind kind);
  hlo::Value constant_number(const lazy::Number& n, lazy::NumberKind kind);
  hlo::DType part_dtype() const;
  hlo::DType number_dtype(const Geometry& geometry) const;
  hlo::Value complex_number(const hlo::Value& real, const hlo::Value& imag) const;

  void end_fusions(hlo::Values& values) const;
  void split(hlo::Values& values, uint32_t ordinal) const;
  void name(const hlo::Values& values, uint32_t ordinal) const;
  void check_dtypes(const Signature& s) const;
  [[noreturn]] void fail_without_rule(const Signature& s) const;

  hlo::Builder& b_;
  const ops::Target& target_;
  const bool with_locations_;
  const ValueSplits* splits_ = nullptr;
  bool names_results_ = false;
  const Call* call_ = nullptr;                       // that is being lowered for every compiler
  std::string place_;                                // that the program gives it
  std::unordered_map<std::string, int64_t> bodies_;  // of composites, by their names
  const ops::Lowering::LowerFunction lower_region_ = [this](const Function& function,
                                                            const hlo::Values& arguments,
                                                            std::span<const hlo::Value> seeds) {
    Frame frame(ops::ManualValues(function), nullptr, seeds);
    hlo::Values values = results_of(frame, arguments);
    expect_no_manual_results(frame.manual);
    return values;
  };
};

}  // namespace torch_xla::executor
