//! The runtime's entry points. What allocates, frees or resets does so by the driver's of the same
//! [`op`](super::op).

use super::{
    Call, CallShape, call,
    op::*,
    place::{
        ARGUMENT as ARG, CHANNELS, CHANNELS_3D, CHANNELS_MIPMAPPED, NONE, OUT, PITCHED, PITCHED_3D,
    },
    when::{ENTRY, RETURN},
};

const fn with_extent(symbol: &'static str, size: u8) -> Call {
    let call = call(symbol, ALLOC, RETURN, OUT, size, NONE);
    Call { shape: CallShape { extent: 1, ..call.shape }, ..call }
}

pub(super) const CALLS: [Call; 27] = [
    call("cudaMalloc", ALLOC, RETURN, OUT, ARG + 1, NONE),
    call("cudaMallocManaged", ALLOC, RETURN, OUT, ARG + 1, NONE),
    call("cudaMallocPitch", ALLOC, RETURN, OUT, PITCHED, NONE),
    with_extent("cudaMalloc3D", PITCHED_3D),
    call("cudaMallocArray", ALLOC, RETURN, OUT, CHANNELS + 1, NONE),
    with_extent("cudaMalloc3DArray", CHANNELS_3D + 1),
    with_extent("cudaMallocMipmappedArray", CHANNELS_MIPMAPPED + 1),
    call("cudaMallocAsync", ALLOC, RETURN, OUT, ARG + 1, NONE),
    call("cudaMallocAsync_ptsz", ALLOC, RETURN, OUT, ARG + 1, NONE),
    call("cudaMallocFromPoolAsync", ALLOC, RETURN, OUT, ARG + 1, NONE),
    call("cudaMallocFromPoolAsync_ptsz", ALLOC, RETURN, OUT, ARG + 1, NONE),
    call("cudaFree", FREE, ENTRY, ARG, NONE, NONE),
    call("cudaFreeAsync", FREE, ENTRY, ARG, NONE, NONE),
    call("cudaFreeAsync_ptsz", FREE, ENTRY, ARG, NONE, NONE),
    call("cudaFreeArray", FREE, ENTRY, ARG, NONE, NONE),
    call("cudaFreeMipmappedArray", FREE, ENTRY, ARG, NONE, NONE),
    call("cudaMallocHost", PIN, RETURN, OUT, ARG + 1, NONE),
    call("cudaHostAlloc", PIN, RETURN, OUT, ARG + 1, NONE),
    call("cudaHostRegister", PIN, RETURN, ARG, ARG + 1, NONE),
    call("cudaFreeHost", UNPIN, ENTRY, ARG, NONE, NONE),
    call("cudaHostUnregister", UNPIN, ENTRY, ARG, NONE, NONE),
    call("cudaIpcOpenMemHandle", IMPORT, RETURN, OUT, NONE, NONE),
    call("cudaIpcCloseMemHandle", UNIMPORT, ENTRY, ARG, NONE, NONE),
    call("cudaImportExternalMemory", IMPORT, RETURN, OUT, NONE, NONE),
    call("cudaDestroyExternalMemory", UNIMPORT, ENTRY, ARG, NONE, NONE),
    call("cudaSetDevice", DEVICE_SET, RETURN, NONE, NONE, ARG),
    call("cudaDeviceReset", DEVICE_RESET, RETURN, NONE, NONE, NONE),
];
