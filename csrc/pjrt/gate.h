// The CPU plugin runs a program that it takes for cheap within the call that launches it: one of
// fewer than 1,000 FLOPs, where custom calls count none, whatever they do, nor do copies. A program
// that has to wait for something else runs on a thread of the plugin, so a gate gives it something
// to wait for.
#pragma once

#include <cstdint>
#include <memory>

#include "pjrt/executable.h"

namespace torch_xla::pjrt {

// While it lives, nothing begins to run that is launched on a device of the CPU plugin. At most 16
// programs may be launched meanwhile: with more in flight, the plugin waits for the first.
class Gate {
 public:
  static bool can_be_made(const Plugin& plugin);
  // The program that stands in the gate, for one device.
  static std::unique_ptr<Executable> make_program(const Client& client, const Device& device);

  Gate(const Client& client, const Executable& program);
  ~Gate();  // opens it
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

 private:
  void destroy_transfer() noexcept;

  const Client& client_;
  PJRT_AsyncHostToDeviceTransferManager* transfer_ = nullptr;  // what the program waits for
};

// Returns whether the CPU plugin takes a program for cheap.
bool is_cheap(const Executable& executable);

}  // namespace torch_xla::pjrt
