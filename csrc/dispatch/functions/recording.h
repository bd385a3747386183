// Recording, a body that runs on placeholders: the calls that it records become a function, and
// nothing of it happens outside.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include <c10/core/AutogradState.h>

#include "dispatch/functions/recorded_function.h"
#include "lazy/recording.h"
#include "lazy/rng.h"

namespace torch_xla::dispatch {

// The device's random state is taken back at the end.
class Recording final : public lazy::Recording {
 public:
  struct Options {
    bool is_export = false;
    // Tensors that were there at this id_boundary(), which precedes the recording, are lent to the
    // function: it reads and writes them as parameters, and they have their values back at the end.
    std::optional<uint64_t> lends = std::nullopt;
    bool may_exchange = false;  // with other replicas
  };
  // A storage that the function has used beside its arguments.
  struct LentState {
    c10::intrusive_ptr<lazy::Storage> storage;
    lazy::Value before;  // undefined: it was not initialised
    lazy::Value placeholder;

    const lazy::Value& now() const { return storage->held(); }
    bool is_written() const { return !(now() == placeholder); }
  };

  explicit Recording(int device) : Recording(device, Options()) {}
  Recording(int device, Options options);
  ~Recording() override;

  // Returns a new storage of this geometry, of which the function's next parameter is the value.
  c10::intrusive_ptr<lazy::Storage> parameter(const lazy::Geometry* geometry);
  // Returns a tensor of such a storage.
  at::Tensor placeholder(const lazy::Geometry* geometry);
  const lazy::Value& parameter_value(size_t parameter) const { return parameters_[parameter]; }
  // Makes a leaf that calls have read already the function's next parameter.
  void add_parameter(lazy::Value leaf) { parameters_.push_back(std::move(leaf)); }
  // Returns whether the storage of a parameter that this has made has been written.
  bool is_written(size_t parameter) const {
    return storages_[parameter]->value() != parameter_value(parameter);
  }
  // Throws where that of any has, but for what mark_sharding() says of it.
  void check_unwritten(const char* name) const;
  void result(lazy::Value value) { results_.push_back(std::move(value)); }

  // In the order of their first use.
  const std::vector<LentState>& lent() const { return lent_; }
  // Tensors made before the recording that were read, or views of them, since note_reads() was
  // called: once each, in the order of their first use. Ends the notes.
  void note_reads() { notes_reads_ = true; }
  Tensors take_reads();

  // Ends the function.
  RecordedFunction finish();
  // Draws of a function whose calls were recorded meanwhile.
  Draws draws_of(const lazy::Function& function) const {
    return Draws(function, start_, random_.position());
  }

  void before_read(lazy::Storage& storage) override;
  void before_read(const lazy::TensorImpl& tensor) override;
  bool lends(lazy::Storage& storage) override;
  bool lends_state() const override { return options_.lends || lazy::Recording::lends_state(); }
  lazy::Value* order_of_exchanges() override;
  bool is_export() const override { return options_.is_export || lazy::Recording::is_export(); }

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

  void lend(lazy::Storage& storage);

  const BackwardHere backward_;
  const int device_;
  const Options options_;
  lazy::RandomState& random_;
  const lazy::RandomState::Position start_;
  std::vector<lazy::Value> parameters_, results_;            // of the function
  std::vector<c10::intrusive_ptr<lazy::Storage>> storages_;  // of the parameters
  std::vector<LentState> lent_;
  std::unordered_map<const lazy::Storage*, size_t> places_;  // in lent_
  lazy::Value order_, next_order_;  // of exchanges; undefined: there are none
  bool notes_reads_ = false;
  Tensors reads_;
};

// Records a body that writes none of its arguments, tensors of these geometries. `results` takes
// the geometries of new tensors that hold its results.
RecordedFunction record(const char* name, int device, const Geometries& parameters, Body body,
                        Geometries& results);

}  // namespace torch_xla::dispatch
