#include "pjrt/event.h"

#include <utility>

#include "pjrt/client.h"

namespace torch_xla::pjrt {

Event::Event(Event&& other) noexcept
    : client_(std::move(other.client_)), event_(std::exchange(other.event_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  if (this != &other) {
    reset();
    client_ = std::move(other.client_);
    event_ = std::exchange(other.event_, nullptr);
  }
  return *this;
}

void Event::reset() noexcept {
  if (event_ != nullptr && !client_->in_forked_child()) {
    PJRT_Event_Destroy_Args args{};
    args.event = event_;
    const Plugin& plugin = client_->plugin();
    plugin.free_error(plugin.try_call<&PJRT_Api::PJRT_Event_Destroy>(args));
  }
  event_ = nullptr;
  client_.reset();
}

bool Event::ready() const {
  if (event_ == nullptr) return true;
  client_->check_process("PJRT_Event_IsReady");
  PJRT_Event_IsReady_Args args{};
  args.event = event_;
  client_->plugin().call<&PJRT_Api::PJRT_Event_IsReady>(args);
  return args.is_ready;
}

void Event::await() const {
  if (event_ == nullptr) return;
  client_->check_process("PJRT_Event_Await");
  PJRT_Event_Await_Args args{};
  args.event = event_;
  client_->plugin().call<&PJRT_Api::PJRT_Event_Await>(args);
}

void Event::on_ready(std::function<void(std::exception_ptr)> callback) const {
  if (event_ == nullptr) return callback(nullptr);
  client_->check_process("PJRT_Event_OnReady");
  struct State {
    std::function<void(std::exception_ptr)> callback;
    const Plugin* plugin;  // never unloaded
  };
  auto state = std::make_unique<State>(State{std::move(callback), &client_->plugin()});
  PJRT_Event_OnReady_Args args{};
  args.event = event_;
  args.user_arg = state.get();
  args.callback = [](PJRT_Error* error, void* user_arg) noexcept {
    std::unique_ptr<State> state(static_cast<State*>(user_arg));
    std::exception_ptr failure;
    if (error != nullptr) {
      failure = std::make_exception_ptr(state->plugin->take_error(error, "PJRT_Event_OnReady"));
    }
    state->callback(std::move(failure));
  };
  client_->plugin().call<&PJRT_Api::PJRT_Event_OnReady>(args);
  state.release();  // the callback's
}

}  // namespace torch_xla::pjrt
