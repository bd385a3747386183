#include "pjrt/buffer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "pjrt/client.h"
#include "spmd/place.h"

namespace torch_xla::pjrt {

namespace {

struct DTypeInfo {
  const char* name;
  size_t host_size;
};

DTypeInfo dtype_info(DType dtype) {
  switch (dtype) {
#define CASE(NAME, SIZE)        \
  case PJRT_Buffer_Type_##NAME: \
    return {#NAME, SIZE};
    CASE(INVALID, 0)
    CASE(PRED, 1)
    CASE(S8, 1)
    CASE(S16, 2)
    CASE(S32, 4)
    CASE(S64, 8)
    CASE(U8, 1)
    CASE(U16, 2)
    CASE(U32, 4)
    CASE(U64, 8)
    CASE(F16, 2)
    CASE(F32, 4)
    CASE(F64, 8)
    CASE(BF16, 2)
    CASE(C64, 8)
    CASE(C128, 16)
    CASE(F8E5M2, 1)
    CASE(F8E4M3FN, 1)
    CASE(F8E4M3B11FNUZ, 1)
    CASE(F8E5M2FNUZ, 1)
    CASE(F8E4M3FNUZ, 1)
    CASE(S4, 1)
    CASE(U4, 1)
    CASE(TOKEN, 0)
    CASE(S2, 1)
    CASE(U2, 1)
    CASE(F8E4M3, 1)
    CASE(F8E3M4, 1)
    CASE(F8E8M0FNU, 1)
    CASE(F4E2M1FN, 1)
#undef CASE
  }
  return {nullptr, 0};
}

std::string dims_text(std::span<const int64_t> dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) text += (i ? "," : "") + std::to_string(dims[i]);
  return text + "]";
}

Error invalid(const char* method, const std::string& text) {
  return Error(method, PJRT_Error_Code_INVALID_ARGUMENT, text);
}

PJRT_HostBufferSemantics to_pjrt(HostSemantics semantics) {
  switch (semantics) {
    case HostSemantics::ImmutableOnlyDuringCall:
      return PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
    case HostSemantics::UntilTransferCompletes:
      return PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes;
    case HostSemantics::ZeroCopy:
      return PJRT_HostBufferSemantics_kImmutableZeroCopy;
    case HostSemantics::MutableZeroCopy:
      return PJRT_HostBufferSemantics_kMutableZeroCopy;
  }
  return PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
}

// Runs `on_done` when the event is ready. It must not hold the client: the plugin's own threads run
// this, and a client cannot be destroyed from them.
void run_when_ready(const Plugin& plugin, PJRT_Event* event, std::function<void()> on_done) {
  struct State {
    std::function<void()> on_done;
    const Plugin* plugin;  // never unloaded
    PJRT_Event* event;
    void finish() noexcept {
      PJRT_Event_Destroy_Args args{};
      args.event = event;
      plugin->free_error(plugin->try_call<&PJRT_Api::PJRT_Event_Destroy>(args));
      if (on_done) on_done();
    }
  };
  auto state = std::make_unique<State>(State{std::move(on_done), &plugin, event});
  PJRT_Event_OnReady_Args args{};
  args.event = event;
  args.user_arg = state.get();
  args.callback = [](PJRT_Error* error, void* user_arg) noexcept {
    std::unique_ptr<State> state(static_cast<State*>(user_arg));
    // A failed transfer is reported by the buffer's own event; here the memory is free either way.
    state->plugin->free_error(error);
    state->finish();
  };
  if (PJRT_Error* error = plugin.try_call<&PJRT_Api::PJRT_Event_OnReady>(args)) {
    // Without a callback, wait: the memory must not be given back before.
    plugin.free_error(error);
    PJRT_Event_Await_Args await{};
    await.event = event;
    plugin.free_error(plugin.try_call<&PJRT_Api::PJRT_Event_Await>(await));
    state->finish();
    return;
  }
  state.release();  // the callback's
}

}  // namespace

size_t host_element_size(DType dtype) { return dtype_info(dtype).host_size; }

std::string dtype_name(DType dtype) {
  const char* name = dtype_info(dtype).name;
  return name != nullptr ? name : "type " + std::to_string(static_cast<int>(dtype));
}

std::shared_ptr<const ArrayType> owned(ArrayType type, const Client& client) {
  struct Owned {
    ArrayType type;
    std::shared_ptr<const Client> client;
  };
  auto block = std::make_shared<Owned>(Owned{std::move(type), client.shared_from_this()});
  return std::shared_ptr<const ArrayType>(block, &block->type);
}

std::unique_ptr<Buffer> Buffer::from_host(const Client& client, const void* data, DType dtype,
                                          std::span<const int64_t> dims,
                                          std::optional<std::span<const int64_t>> byte_strides,
                                          HostSemantics semantics, const Device& device,
                                          std::function<void()> on_done) {
  constexpr const char* kMethod = "PJRT_Client_BufferFromHostBuffer";
  client.check_process(kMethod);
  if (byte_strides && byte_strides->size() != dims.size()) {
    throw invalid(kMethod, "expected one stride for each dimension of " + dims_text(dims) +
                               ", got the strides " + dims_text(*byte_strides) + ".");
  }
  bool empty = false;
  for (int64_t dim : dims) {
    if (dim < 0) throw invalid(kMethod, "expected no negative dimension, got " + dims_text(dims));
    empty |= dim == 0;
  }
  if (data == nullptr && !empty) {
    throw invalid(kMethod, "expected data for " + dtype_name(dtype) + dims_text(dims) +
                               ", got a null pointer.");
  }
  std::shared_ptr<const ArrayType> type = owned({dtype, {dims.begin(), dims.end()}}, client);

  PJRT_Client_BufferFromHostBuffer_Args args{};
  args.client = client.handle();
  args.data = data;
  args.type = dtype;
  args.dims = dims.data();
  args.num_dims = dims.size();
  if (byte_strides && !empty) {
    args.byte_strides = byte_strides->data();
    args.num_byte_strides = byte_strides->size();
  }
  args.host_buffer_semantics = to_pjrt(semantics);
  args.device = device.handle();
  client.plugin().call<&PJRT_Api::PJRT_Client_BufferFromHostBuffer>(args);

  auto buffer = std::make_unique<Buffer>(std::move(type), &client, args.buffer);
  const bool in_use =
      semantics != HostSemantics::ImmutableOnlyDuringCall && args.done_with_host_buffer != nullptr;
  if (on_done && in_use) {
    run_when_ready(client.plugin(), args.done_with_host_buffer, std::move(on_done));
  } else {
    Event(client.shared_from_this(), args.done_with_host_buffer).reset();
    if (on_done) on_done();
  }
  return buffer;
}

std::unique_ptr<Buffer> Buffer::view_of_device_memory(const Client& client, void* data, DType dtype,
                                                      std::span<const int64_t> dims,
                                                      const Device& device,
                                                      std::function<void()> on_done) {
  client.check_process("PJRT_Client_CreateViewOfDeviceBuffer");
  using Callback = std::function<void()>;
  auto callback = std::make_unique<Callback>(std::move(on_done));
  PJRT_Client_CreateViewOfDeviceBuffer_Args args{};
  args.client = client.handle();
  args.device_buffer_ptr = data;
  args.dims = dims.data();
  args.num_dims = dims.size();
  args.element_type = dtype;
  args.device = device.handle();
  args.on_delete_callback_arg = callback.get();
  args.on_delete_callback = [](void*, void* arg) noexcept {
    const std::unique_ptr<Callback> done(static_cast<Callback*>(arg));
    if (*done) (*done)();
  };
  client.plugin().call<&PJRT_Api::PJRT_Client_CreateViewOfDeviceBuffer>(args);
  callback.release();  // the plugin's
  return std::make_unique<Buffer>(owned({dtype, {dims.begin(), dims.end()}}, client), &client,
                                  args.buffer);
}

Buffer::Buffer(Buffer&& other) noexcept
    : type_(std::move(other.type_)),
      client_(other.client_),
      buffer_(std::exchange(other.buffer_, nullptr)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    reset();
    type_ = std::move(other.type_);
    client_ = other.client_;
    buffer_ = std::exchange(other.buffer_, nullptr);
  }
  return *this;
}

void Buffer::reset() noexcept {
  if (buffer_ == nullptr) return;
  if (!client_->in_forked_child()) {
    PJRT_Buffer_Destroy_Args args{};
    args.buffer = buffer_;
    const Plugin& plugin = client_->plugin();
    plugin.free_error(plugin.try_call<&PJRT_Api::PJRT_Buffer_Destroy>(args));
  }
  buffer_ = nullptr;
}

size_t Buffer::host_size() const {
  size_t size = host_element_size(dtype());
  for (int64_t dim : dims()) size *= static_cast<size_t>(dim);
  return size;
}

Event Buffer::ready() const {
  client_->check_process("PJRT_Buffer_ReadyEvent");
  PJRT_Buffer_ReadyEvent_Args args{};
  args.buffer = buffer_;
  client_->plugin().call<&PJRT_Api::PJRT_Buffer_ReadyEvent>(args);
  return Event(client_->shared_from_this(), args.event);
}

Event Buffer::copy_to_host(void* dst, size_t size) const {
  constexpr const char* kMethod = "PJRT_Buffer_ToHostBuffer";
  client_->check_process(kMethod);
  if (size < host_size()) {
    throw Error(kMethod, PJRT_Error_Code_INVALID_ARGUMENT,
                "expected room for " + std::to_string(host_size()) + " bytes, got " +
                    std::to_string(size) + ". Pass a larger destination.");
  }
  PJRT_Buffer_ToHostBuffer_Args args{};
  args.src = buffer_;
  args.dst = dst;
  args.dst_size = size;

  // The device's layout may differ from row-major, and is what would come without this request.
  const size_t rank = dims().size();
  PJRT_Buffer_MemoryLayout layout{};
  std::array<int64_t, 8> few;
  std::vector<int64_t> many;
  if (rank > 1) {
    int64_t* minor_to_major = few.data();
    if (rank > few.size()) {
      many.resize(rank);
      minor_to_major = many.data();
    }
    for (size_t i = 0; i < rank; ++i) minor_to_major[i] = static_cast<int64_t>(rank - 1 - i);
    layout.struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE;
    layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
    layout.tiled.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE;
    layout.tiled.minor_to_major = minor_to_major;
    layout.tiled.minor_to_major_size = rank;
    args.host_layout = &layout;
  }
  client_->plugin().call<&PJRT_Api::PJRT_Buffer_ToHostBuffer>(args);
  return Event(client_->shared_from_this(), args.event);
}

void* Buffer::unsafe_pointer() const {
  client_->check_process("PJRT_Buffer_UnsafePointer");
  PJRT_Buffer_UnsafePointer_Args args{};
  args.buffer = buffer_;
  client_->plugin().call<&PJRT_Api::PJRT_Buffer_UnsafePointer>(args);
  return reinterpret_cast<void*>(args.buffer_pointer);
}

// Plugins that count no external references never move memory either.
void* Buffer::share() const {
  const Plugin& plugin = client_->plugin();
  if (plugin.has<&PJRT_Api::PJRT_Buffer_IncreaseExternalReferenceCount>()) {
    PJRT_Buffer_IncreaseExternalReferenceCount_Args args{};
    args.buffer = buffer_;
    plugin.call<&PJRT_Api::PJRT_Buffer_IncreaseExternalReferenceCount>(args);
  }
  try {
    return unsafe_pointer();
  } catch (...) {
    unshare();
    throw;
  }
}

void Buffer::unshare() const noexcept {
  const Plugin& plugin = client_->plugin();
  if (client_->in_forked_child() ||
      !plugin.has<&PJRT_Api::PJRT_Buffer_DecreaseExternalReferenceCount>()) {
    return;
  }
  PJRT_Buffer_DecreaseExternalReferenceCount_Args args{};
  args.buffer = buffer_;
  plugin.free_error(plugin.try_call<&PJRT_Api::PJRT_Buffer_DecreaseExternalReferenceCount>(args));
}

bool Buffer::is_on_cpu() const {
  client_->check_process("PJRT_Buffer_IsOnCpu");
  PJRT_Buffer_IsOnCpu_Args args{};
  args.buffer = buffer_;
  client_->plugin().call<&PJRT_Api::PJRT_Buffer_IsOnCpu>(args);
  return args.is_on_cpu;
}

bool Buffer::is_deleted() const {
  client_->check_process("PJRT_Buffer_IsDeleted");
  PJRT_Buffer_IsDeleted_Args args{};
  args.buffer = buffer_;
  client_->plugin().call<&PJRT_Api::PJRT_Buffer_IsDeleted>(args);
  return args.is_deleted;
}

void Buffer::delete_() {
  client_->check_process("PJRT_Buffer_Delete");
  PJRT_Buffer_Delete_Args args{};
  args.buffer = buffer_;
  client_->plugin().call<&PJRT_Api::PJRT_Buffer_Delete>(args);
}

std::unique_ptr<Buffer> Buffer::copy_to_device(const Device& device) const {
  client_->check_process("PJRT_Buffer_CopyToDevice");
  PJRT_Buffer_CopyToDevice_Args args{};
  args.buffer = buffer_;
  args.dst_device = device.handle();
  client_->plugin().call<&PJRT_Api::PJRT_Buffer_CopyToDevice>(args);
  return std::make_unique<Buffer>(type_, client_, args.dst_buffer);
}

Device Buffer::device() const {
  client_->check_process("PJRT_Buffer_Device");
  PJRT_Buffer_Device_Args args{};
  args.buffer = buffer_;
  client_->plugin().call<&PJRT_Api::PJRT_Buffer_Device>(args);
  return client_->find_device(args.device);
}

Array Array::from_host(const Client& client, const void* data, DType dtype,
                       std::span<const int64_t> dims, std::span<const Device> devices) {
  const auto upload = [&](const Device& device) {
    return std::move(*Buffer::from_host(client, data, dtype, dims, std::nullopt,
                                        HostSemantics::ImmutableOnlyDuringCall, device));
  };
  Array array(upload(devices[0]));
  for (const Device& device : devices.subspan(1)) array.add(upload(device));
  return array;
}

Array Array::on_host(const Client& client, std::shared_ptr<const void> data, DType dtype,
                     std::span<const int64_t> dims, const spmd::Sharding* sharding) {
  ArrayType type{dtype, {dims.begin(), dims.end()}};
  Array array(Buffer(owned(std::move(type), client), &client, nullptr));
  array.rare().host_data = std::move(data);
  if (sharding != nullptr) array.set_sharding(sharding, {dims.begin(), dims.end()});
  return array;
}

Array Array::promise(const Client& client, DType dtype, std::span<const int64_t> dims) {
  return Array(Buffer(owned({dtype, {dims.begin(), dims.end()}}, client), &client, nullptr));
}

void Array::fulfil(Array&& made) {
  if (!is_promise() || made.num_buffers() != 1 || made.dtype() != dtype() ||
      made.dims() != dims()) {
    throw Error("Array::fulfil", PJRT_Error_Code_INTERNAL,
                "expected the value that was promised, got another.");
  }
  std::swap(first_.buffer_, made.first_.buffer_);
}

Array Array::given_away(const Array& value, std::string why) {
  Array rest(Buffer(value.first_.type_, value.first_.client_, nullptr));
  if (value.sharding() != nullptr) rest.set_sharding(value.sharding(), value.dims());
  rest.set_loss(std::move(why));
  rest.set_offered(value.is_offered());
  return rest;
}

void Array::set_sharding(const spmd::Sharding* sharding, std::vector<int64_t> dims) {
  rare().sharding = sharding;
  rare_->dims = std::move(dims);
}

const Buffer& Array::whole() const {
  if (sharding() != nullptr || num_buffers() == 0) {
    throw Error("Array::whole", PJRT_Error_Code_FAILED_PRECONDITION,
                "expected the whole value on a device, got parts of it on several or none.");
  }
  return first_;
}

Array Array::copy_to(const Devices& devices) const {
  Array copy(std::move(*whole().copy_to_device(devices.mine[0])));
  copy.extend_to(devices);
  return copy;
}

namespace {

// A dense row-major part with zeros beyond what is `there`, which lies at `data`.
std::vector<char> padded_part(const char* data, std::span<const int64_t> strides,
                              std::span<const int64_t> there, std::span<const int64_t> part,
                              size_t element_size) {
  std::vector<size_t> stride(part.size(), element_size);  // of the part
  for (size_t i = part.size(); i-- > 1;) stride[i - 1] = stride[i] * static_cast<size_t>(part[i]);
  std::vector<char> padded(stride[0] * static_cast<size_t>(part[0]));
  const auto copy = [&](const auto& self, const char* from, char* to, size_t dim) -> void {
    if (dim + 1 == part.size()) {
      std::memcpy(to, from, static_cast<size_t>(there[dim]) * element_size);
      return;
    }
    for (int64_t i = 0; i < there[dim]; ++i) {
      self(self, from + i * strides[dim], to + static_cast<size_t>(i) * stride[dim], dim + 1);
    }
  };
  copy(copy, data, padded.data(), 0);
  return padded;
}

}  // namespace

size_t Array::extend_to(const Devices& devices) {
  if (host_data() == nullptr) {
    for (size_t i = num_buffers(); i < devices.mine.size(); ++i) {
      add(std::move(*whole().copy_to_device(devices.mine[i])));
    }
    return 0;
  }
  const spmd::Sharding* split = sharding();
  const std::vector<int64_t> all = dims();
  const std::vector<int64_t> part = split == nullptr ? all : split->part_sizes(all);
  std::vector<int64_t> strides(all.size(), static_cast<int64_t>(host_element_size(dtype())));
  for (size_t i = all.size(); i-- > 1;) strides[i - 1] = strides[i] * all[i];
  size_t bytes = 0;
  std::vector<std::unique_ptr<Buffer>> sent;
  for (size_t d = 0; d < devices.mine.size(); ++d) {
    const auto* data = static_cast<const char*>(host_data().get());
    std::vector<char> padded;
    if (split != nullptr) {
      std::vector<int64_t> there;  // without padding
      int64_t i = 0;
      for (const auto [start, end] : spmd::place_of(*split, devices.positions[d], all)) {
        data += start * strides[i++];
        there.push_back(end - start);
      }
      if (there != part) {
        padded = padded_part(data, strides, there, part, host_element_size(dtype()));
        data = padded.data();
      }
    }
    const bool is_strided = split != nullptr && padded.empty();
    sent.push_back(Buffer::from_host(
        *first_.client_, data, dtype(), part,
        is_strided ? std::optional(std::span<const int64_t>(strides)) : std::nullopt,
        HostSemantics::ImmutableOnlyDuringCall, devices.mine[d]));
    bytes += sent.back()->host_size();
  }
  first_ = std::move(*sent[0]);
  for (size_t d = 1; d < sent.size(); ++d) others_.push_back(std::move(sent[d]));
  rare_->host_data = nullptr;
  return bytes;
}

}  // namespace torch_xla::pjrt
