// Profiler, a profile that a plugin itself makes of what its devices do.
#pragma once

#include <memory>
#include <string>

#include "pjrt/plugin.h"
#include "pjrt/profiler_extension.h"

namespace torch_xla::pjrt {

class Profiler {
 public:
  // Returns whether the plugin makes profiles.
  static bool has(const Plugin& plugin) { return find(plugin) != nullptr; }
  // Starts one; returns null where the plugin makes none. `options` is a serialized
  // tensorflow.ProfileOptions. Some plugins see their devices only if there is a client by then.
  // Throws Error.
  static std::unique_ptr<Profiler> start(std::shared_ptr<Plugin> plugin,
                                         const std::string& options);
  ~Profiler();  // what was not stopped is lost
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  // Ends it and returns what it saw: a serialized tensorflow.profiler.XSpace, whose times are
  // nanoseconds since the epoch. Called once. Throws Error.
  std::string stop();

 private:
  Profiler(std::shared_ptr<Plugin> plugin, const ProfilerApi* api)
      : plugin_(std::move(plugin)), api_(api) {}
  static const ProfilerApi* find(const Plugin& plugin);
  // Calls the function and throws what it answers.
  template <class Args>
  void call(ProfilerError* (*function)(Args*), Args& args, const char* name) const;

  const std::shared_ptr<Plugin> plugin_;
  const ProfilerApi* const api_;
  ProfilerHandle* handle_ = nullptr;
  bool running_ = false;
};

}  // namespace torch_xla::pjrt
