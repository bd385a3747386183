// Event, a point in a device's work: callers wait for it, or have a function called there.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <utility>

#include "pjrt/plugin.h"

namespace torch_xla::pjrt {

class Client;

// A point in the device's work. Owning and movable; a default-constructed event is ready.
class Event {
 public:
  Event() = default;
  Event(std::shared_ptr<const Client> client, PJRT_Event* event)
      : client_(std::move(client)), event_(event) {}
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  ~Event() { reset(); }

  bool ready() const;
  // Blocks until the event is ready; throws the Error of the work that failed.
  void await() const;
  // Runs `callback` once the event is ready, on a thread of the plugin or on this one; the argument
  // is null on success. The event itself may be destroyed before. The callback must neither throw
  // nor release the last reference to the client.
  void on_ready(std::function<void(std::exception_ptr)> callback) const;
  // Destroys the underlying event; the object becomes a ready event.
  void reset() noexcept;
  PJRT_Event* handle() const { return event_; }

 private:
  std::shared_ptr<const Client> client_;
  PJRT_Event* event_ = nullptr;
};

}  // namespace torch_xla::pjrt
