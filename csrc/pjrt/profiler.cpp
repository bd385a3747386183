#include "pjrt/profiler.h"

#include <utility>

namespace torch_xla::pjrt {
namespace {

void destroy(const ProfilerApi* api, ProfilerError* error) {
  if (error == nullptr) return;
  ProfilerErrorArgs args{sizeof(args), nullptr, error};
  api->error_destroy(&args);
}

}  // namespace

const ProfilerApi* Profiler::find(const Plugin& plugin) {
  const auto* extension = reinterpret_cast<const ProfilerExtension*>(
      plugin.find_extension(PJRT_Extension_Type_Profiler));
  const bool there =
      extension != nullptr && extension->base.struct_size >= kProfilerExtensionSize &&
      extension->api != nullptr && extension->api->struct_size >= sizeof(ProfilerApi);
  return there ? extension->api : nullptr;
}

std::unique_ptr<Profiler> Profiler::start(std::shared_ptr<Plugin> plugin,
                                          const std::string& options) {
  const ProfilerApi* api = find(*plugin);
  if (api == nullptr) return nullptr;
  std::unique_ptr<Profiler> profiler(new Profiler(std::move(plugin), api));
  ProfilerCreateArgs create{sizeof(create), options.data(), options.size(), nullptr};
  profiler->call(api->create, create, "PLUGIN_Profiler_Create");
  profiler->handle_ = create.profiler;
  ProfilerArgs start{sizeof(start), profiler->handle_};
  profiler->call(api->start, start, "PLUGIN_Profiler_Start");
  profiler->running_ = true;
  return profiler;
}

Profiler::~Profiler() {
  if (handle_ == nullptr) return;
  ProfilerArgs args{sizeof(args), handle_};
  if (running_) destroy(api_, api_->stop(&args));
  destroy(api_, api_->destroy(&args));
}

std::string Profiler::stop() {
  ProfilerArgs args{sizeof(args), handle_};
  running_ = false;
  call(api_->stop, args, "PLUGIN_Profiler_Stop");
  ProfilerCollectArgs collect{sizeof(collect), handle_, nullptr, 0};
  call(api_->collect, collect, "PLUGIN_Profiler_CollectData");
  if (collect.buffer != nullptr) {
    return {reinterpret_cast<const char*>(collect.buffer), collect.buffer_size};
  }
  std::string space(collect.buffer_size, '\0');
  if (space.empty()) return space;
  collect.buffer = reinterpret_cast<uint8_t*>(space.data());
  call(api_->collect, collect, "PLUGIN_Profiler_CollectData");
  return space;
}

template <class Args>
void Profiler::call(ProfilerError* (*function)(Args*), Args& args, const char* name) const {
  ProfilerError* error = function(&args);
  if (error == nullptr) return;
  ProfilerErrorMessageArgs message{sizeof(message), nullptr, error, "", 0};
  destroy(api_, api_->error_message(&message));
  ProfilerErrorCodeArgs code{sizeof(code), nullptr, error, PJRT_Error_Code_UNKNOWN};
  destroy(api_, api_->error_code(&code));
  const Error failure(name, static_cast<PJRT_Error_Code>(code.code),
                      std::string(message.message, message.message_size));
  destroy(api_, error);
  throw failure;
}

}  // namespace torch_xla::pjrt
