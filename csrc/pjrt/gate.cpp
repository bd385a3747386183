#include "pjrt/gate.h"

#include <array>
#include <variant>

#include "pjrt/client.h"

namespace torch_xla::pjrt {

namespace {

constexpr int64_t kSize = 8;  // the product of two matrices has 1,024 FLOPs
constexpr std::array<int64_t, 2> kDims = {kSize, kSize};
constexpr std::array<float, kSize * kSize> kContents{};

constexpr const char* kProgram = R"(
func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %y = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0]
      : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %y : tensor<8x8xf32>
})";

}  // namespace

bool Gate::can_be_made(const Plugin& plugin) {
  return plugin.has<&PJRT_Api::PJRT_Client_CreateBuffersForAsyncHostToDevice>() &&
         plugin.has<&PJRT_Api::PJRT_AsyncHostToDeviceTransferManager_TransferData>();
}

std::unique_ptr<Executable> Gate::make_program(const Client& client, const Device& device) {
  CompileOptions options;
  options.device_ids = {device.id()};
  return Executable::compile(client, kProgram, options);
}

Gate::Gate(const Client& client, const Executable& program) : client_(client) {
  const Plugin& plugin = client_.plugin();
  PJRT_Device_DefaultMemory_Args memory{};
  memory.device = program.devices().at(0).handle();
  plugin.call<&PJRT_Api::PJRT_Device_DefaultMemory>(memory);

  PJRT_ShapeSpec shape{};
  shape.struct_size = PJRT_ShapeSpec_STRUCT_SIZE;
  shape.dims = kDims.data();
  shape.num_dims = kDims.size();
  shape.element_type = PJRT_Buffer_Type_F32;
  PJRT_Client_CreateBuffersForAsyncHostToDevice_Args create{};
  create.client = client_.handle();
  create.shape_specs = &shape;
  create.num_shape_specs = 1;
  create.memory = memory.memory;
  plugin.call<&PJRT_Api::PJRT_Client_CreateBuffersForAsyncHostToDevice>(create);
  transfer_ = create.transfer_manager;
  try {
    PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args retrieve{};
    retrieve.transfer_manager = transfer_;
    plugin.call<&PJRT_Api::PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer>(retrieve);
    static const auto& type = *new std::shared_ptr<const ArrayType>(
        new ArrayType{PJRT_Buffer_Type_F32, {kDims.begin(), kDims.end()}});
    const Buffer to_come(type, &client_, retrieve.buffer_out);
    PJRT_Buffer* argument = to_come.handle();
    program.execute({&argument, 1});
  } catch (...) {
    destroy_transfer();
    throw;
  }
}

Gate::~Gate() {
  const Plugin& plugin = client_.plugin();
  PJRT_AsyncHostToDeviceTransferManager_TransferData_Args args{};
  args.transfer_manager = transfer_;
  args.data = kContents.data();
  args.transfer_size = sizeof(kContents);
  args.is_last_transfer = true;
  PJRT_Error* error =
      plugin.try_call<&PJRT_Api::PJRT_AsyncHostToDeviceTransferManager_TransferData>(args);
  if (error == nullptr) Event(client_.shared_from_this(), args.done_with_h2d_transfer).reset();
  plugin.free_error(error);
  destroy_transfer();
}

void Gate::destroy_transfer() noexcept {
  PJRT_AsyncHostToDeviceTransferManager_Destroy_Args args{};
  args.transfer_manager = transfer_;
  const Plugin& plugin = client_.plugin();
  plugin.free_error(
      plugin.try_call<&PJRT_Api::PJRT_AsyncHostToDeviceTransferManager_Destroy>(args));
}

bool is_cheap(const Executable& executable) {
  constexpr float kFewest = 1000;
  const Options costs = executable.cost_analysis();
  const auto flops = costs.find("flops");
  if (flops == costs.end()) return true;  // a program of copies alone
  const float* count = std::get_if<float>(&flops->second);
  return count != nullptr && *count < kFewest;
}

}  // namespace torch_xla::pjrt
