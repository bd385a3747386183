// Generator, the torch.Generator of xla: PyTorch's handle of a random state.
#pragma once

#include <memory>
#include <optional>

#include <ATen/core/Generator.h>

#include "lazy/rng.h"

namespace torch_xla::dispatch {

class Generator final : public c10::GeneratorImpl {
 public:
  static constexpr c10::DeviceType device_type() { return c10::kXLA; }

  Generator(int device, std::shared_ptr<lazy::RandomState> state);

  uint64_t next_seed() { return state_->next_seed(); }

  void set_current_seed(uint64_t seed) override { state_->set({seed, 0}); }
  uint64_t current_seed() const override { return state_->position().seed; }
  uint64_t seed() override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override { return state_->position().offset; }
  // Returns 16 bytes, as on CUDA: the seed and the offset.
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  void set_state(const c10::TensorImpl& new_state) override;

 private:
  Generator* clone_impl() const override;

  std::shared_ptr<lazy::RandomState> state_;
};

// Returns the generator whose state is the device's.
const at::Generator& default_generator(int device);
// Makes a generator with a state of its own, seeded as PyTorch seeds new generators.
at::Generator new_generator(int device);

// Draws the seed of one random call: from its generator where it has one, else from the device's
// state.
uint64_t draw_seed(const std::optional<at::Generator>& generator, int device);

}  // namespace torch_xla::dispatch
