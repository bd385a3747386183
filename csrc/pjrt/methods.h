// The methods of the PJRT C API that this project calls: for each its name, its place in PJRT_Api
// and its argument struct. A new method is one line here; Plugin::call does the rest.
#pragma once

#include <cstddef>

#include <pjrt_c_api.h>

namespace torch_xla::pjrt {

template <auto Field>
struct Method;

#define TORCH_XLA_PJRT_METHOD(NAME)                                                         \
  template <>                                                                               \
  struct Method<&PJRT_Api::NAME> {                                                          \
    using Args = NAME##_Args;                                                               \
    static constexpr const char* name = #NAME;                                              \
    static constexpr size_t args_size = NAME##_Args_STRUCT_SIZE;                            \
    static constexpr size_t end_in_api = offsetof(PJRT_Api, NAME) + sizeof(PJRT_Api::NAME); \
  };

TORCH_XLA_PJRT_METHOD(PJRT_Plugin_Initialize)
TORCH_XLA_PJRT_METHOD(PJRT_Plugin_Attributes)

TORCH_XLA_PJRT_METHOD(PJRT_Event_Destroy)
TORCH_XLA_PJRT_METHOD(PJRT_Event_IsReady)
TORCH_XLA_PJRT_METHOD(PJRT_Event_Await)
TORCH_XLA_PJRT_METHOD(PJRT_Event_OnReady)

TORCH_XLA_PJRT_METHOD(PJRT_Client_Create)
TORCH_XLA_PJRT_METHOD(PJRT_Client_Destroy)
TORCH_XLA_PJRT_METHOD(PJRT_Client_PlatformName)
TORCH_XLA_PJRT_METHOD(PJRT_Client_PlatformVersion)
TORCH_XLA_PJRT_METHOD(PJRT_Client_ProcessIndex)
TORCH_XLA_PJRT_METHOD(PJRT_Client_Devices)
TORCH_XLA_PJRT_METHOD(PJRT_Client_AddressableDevices)
TORCH_XLA_PJRT_METHOD(PJRT_Client_Compile)
TORCH_XLA_PJRT_METHOD(PJRT_Client_BufferFromHostBuffer)
TORCH_XLA_PJRT_METHOD(PJRT_Client_CreateViewOfDeviceBuffer)
TORCH_XLA_PJRT_METHOD(PJRT_Client_CreateBuffersForAsyncHostToDevice)
TORCH_XLA_PJRT_METHOD(PJRT_AsyncHostToDeviceTransferManager_Destroy)
TORCH_XLA_PJRT_METHOD(PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer)
TORCH_XLA_PJRT_METHOD(PJRT_AsyncHostToDeviceTransferManager_TransferData)

TORCH_XLA_PJRT_METHOD(PJRT_DeviceDescription_Id)
TORCH_XLA_PJRT_METHOD(PJRT_DeviceDescription_ProcessIndex)
TORCH_XLA_PJRT_METHOD(PJRT_DeviceDescription_Attributes)
TORCH_XLA_PJRT_METHOD(PJRT_DeviceDescription_Kind)
TORCH_XLA_PJRT_METHOD(PJRT_DeviceDescription_DebugString)

TORCH_XLA_PJRT_METHOD(PJRT_Device_GetDescription)
TORCH_XLA_PJRT_METHOD(PJRT_Device_LocalHardwareId)
TORCH_XLA_PJRT_METHOD(PJRT_Device_MemoryStats)
TORCH_XLA_PJRT_METHOD(PJRT_Device_DefaultMemory)

TORCH_XLA_PJRT_METHOD(PJRT_Executable_Destroy)
TORCH_XLA_PJRT_METHOD(PJRT_Executable_Name)
TORCH_XLA_PJRT_METHOD(PJRT_Executable_NumPartitions)
TORCH_XLA_PJRT_METHOD(PJRT_Executable_NumOutputs)
TORCH_XLA_PJRT_METHOD(PJRT_Executable_GetCostAnalysis)
TORCH_XLA_PJRT_METHOD(PJRT_Executable_GetCompiledMemoryStats)
TORCH_XLA_PJRT_METHOD(PJRT_Executable_OutputElementTypes)
TORCH_XLA_PJRT_METHOD(PJRT_Executable_OutputDimensions)
TORCH_XLA_PJRT_METHOD(PJRT_Executable_Serialize)
TORCH_XLA_PJRT_METHOD(PJRT_Executable_OptimizedProgram)
TORCH_XLA_PJRT_METHOD(PJRT_Executable_DeserializeAndLoad)
TORCH_XLA_PJRT_METHOD(PJRT_Executable_Fingerprint)

TORCH_XLA_PJRT_METHOD(PJRT_LoadedExecutable_Destroy)
TORCH_XLA_PJRT_METHOD(PJRT_LoadedExecutable_GetExecutable)
TORCH_XLA_PJRT_METHOD(PJRT_LoadedExecutable_AddressableDevices)
TORCH_XLA_PJRT_METHOD(PJRT_LoadedExecutable_Execute)
TORCH_XLA_PJRT_METHOD(PJRT_LoadedExecutable_Fingerprint)

TORCH_XLA_PJRT_METHOD(PJRT_Buffer_Destroy)
TORCH_XLA_PJRT_METHOD(PJRT_Buffer_ElementType)
TORCH_XLA_PJRT_METHOD(PJRT_Buffer_Dimensions)
TORCH_XLA_PJRT_METHOD(PJRT_Buffer_Device)
TORCH_XLA_PJRT_METHOD(PJRT_Buffer_Delete)
TORCH_XLA_PJRT_METHOD(PJRT_Buffer_IsDeleted)
TORCH_XLA_PJRT_METHOD(PJRT_Buffer_CopyToDevice)
TORCH_XLA_PJRT_METHOD(PJRT_Buffer_ToHostBuffer)
TORCH_XLA_PJRT_METHOD(PJRT_Buffer_IsOnCpu)
TORCH_XLA_PJRT_METHOD(PJRT_Buffer_ReadyEvent)
TORCH_XLA_PJRT_METHOD(PJRT_Buffer_UnsafePointer)
TORCH_XLA_PJRT_METHOD(PJRT_Buffer_IncreaseExternalReferenceCount)
TORCH_XLA_PJRT_METHOD(PJRT_Buffer_DecreaseExternalReferenceCount)

TORCH_XLA_PJRT_METHOD(PJRT_TopologyDescription_Create)
TORCH_XLA_PJRT_METHOD(PJRT_TopologyDescription_Destroy)
TORCH_XLA_PJRT_METHOD(PJRT_TopologyDescription_PlatformName)
TORCH_XLA_PJRT_METHOD(PJRT_TopologyDescription_GetDeviceDescriptions)
TORCH_XLA_PJRT_METHOD(PJRT_Compile)

#undef TORCH_XLA_PJRT_METHOD

}  // namespace torch_xla::pjrt
