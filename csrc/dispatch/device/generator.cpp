#include "dispatch/device/generator.h"

#include <cstring>

#include <ATen/EmptyTensor.h>

#include "lazy/device.h"

namespace torch_xla::dispatch {
namespace {

constexpr size_t kStateBytes = sizeof(lazy::RandomState::Position);
static_assert(kStateBytes == 16);

}  // namespace

Generator::Generator(int device, std::shared_ptr<lazy::RandomState> state)
    : c10::GeneratorImpl(at::Device(at::kXLA, static_cast<c10::DeviceIndex>(device)),
                         c10::DispatchKeySet(c10::DispatchKey::XLA)),
      state_(std::move(state)) {}

uint64_t Generator::seed() {
  const uint64_t seed = c10::detail::getNonDeterministicRandom();
  set_current_seed(seed);
  return seed;
}

void Generator::set_offset(uint64_t offset) { state_->set({current_seed(), offset}); }

c10::intrusive_ptr<c10::TensorImpl> Generator::get_state() const {
  const lazy::RandomState::Position position = state_->position();
  const at::Tensor bytes = at::detail::empty_cpu({static_cast<int64_t>(kStateBytes)}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), &position, kStateBytes);
  return bytes.getIntrusivePtr();
}

void Generator::set_state(const c10::TensorImpl& new_state) {
  at::detail::check_rng_state(new_state);
  TORCH_CHECK(new_state.numel() == kStateBytes, "RNG state is wrong size: expected the ",
              kStateBytes, " bytes of get_state(), got ", new_state.numel(), ".");
  lazy::RandomState::Position position;
  std::memcpy(&position, new_state.data(), kStateBytes);
  state_->set(position);
}

Generator* Generator::clone_impl() const {
  return new Generator(device().index(), std::make_shared<lazy::RandomState>(state_->position()));
}

const at::Generator& default_generator(int index) {
  lazy::Device& device = lazy::Device::of(index);
  return device.generator.get<at::Generator>([&] {
    // The state lives as long as the process.
    const std::shared_ptr<lazy::RandomState> state(&device.random, [](lazy::RandomState*) {});
    return new at::Generator(at::make_generator<Generator>(index, state));
  });
}

at::Generator new_generator(int device) {
  return at::make_generator<Generator>(
      device, std::make_shared<lazy::RandomState>(
                  lazy::RandomState::Position{c10::default_rng_seed_val, 0}));
}

uint64_t draw_seed(const std::optional<at::Generator>& generator, int device) {
  if (!generator || !generator->defined()) return lazy::Device::of(device).random.next_seed();
  return at::check_generator<Generator>(generator)->next_seed();
}

}  // namespace torch_xla::dispatch
