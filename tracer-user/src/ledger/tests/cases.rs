//! Cases that have a name: each was found once, or is a rule of the driver's.

use super::*;

fn attached() -> Model {
    let mut model = Model::new(Vec::new());
    model.attached = true;
    model
}

/// Bytes that the driver has handed out, on a device or on none that is known.
fn driver_bytes(model: &Model, device: Option<u8>) -> u64 {
    let index = device.map(Device);
    model.ledger.devices().iter().find(|d| d.index == index).map_or(0, |d| d.driver_bytes)
}

#[test]
fn an_address_of_the_driver_that_is_handed_out_again_is_a_new_block() {
    let mut model = attached();
    model.driver_alloc(0, 0x1000, 100, 1);
    // Its free was not seen.
    model.driver_alloc(0, 0x1000, 300, 2);
    assert_eq!(driver_bytes(&model, None), 300);
    // A free that fails after another thread got the address must not bring the old block back.
    model.driver_free(1, Phase::Begun, 0x1000);
    model.driver_alloc(2, 0x1000, 700, 3);
    model.driver_free(1, Phase::Failed(1), 0x1000);
    assert_eq!(driver_bytes(&model, None), 700);
}

#[test]
fn peaks_do_not_count_a_segment_at_two_devices() {
    let mut model = attached();
    model.run(&Step::Alloc { device: 1, thread: 0, size: 4096, stack: 3 });
    let driver: Vec<_> =
        model.ledger.sites().filter(|(key, _)| key.level == Level::Driver).collect();
    assert_eq!(driver.len(), 1);
    assert_eq!(driver[0].0.device, Some(Device(1)));
    assert_eq!(driver[0].1.peak_bytes(), SEGMENT);
}

#[test]
fn physical_memory_counts_until_it_is_released_and_unmapped() {
    for unmap_first in [false, true] {
        let mut model = attached();
        model.call(0, "cuMemCreate", Phase::Done, 7, 4096, 1, 1);
        model.call(0, "cuMemMap", Phase::Done, 0x10_0000, 4096, 7, 0);
        model.call(0, "cuMemMap", Phase::Done, 0x20_0000, 4096, 7, 0);
        model.call(0, "cuMemRetainAllocationHandle", Phase::Done, 7, 0, 0x20_0100, 0);
        assert_eq!(driver_bytes(&model, Some(1)), 4096, "mapped twice, there once");
        let release = |model: &mut Model| model.call(0, "cuMemRelease", Phase::Begun, 7, 0, 0, 0);
        let unmap = |model: &mut Model| {
            model.call(0, "cuMemUnmap", Phase::Begun, 0x10_0000, 0x20_0000, 0, 0)
        };
        release(&mut model);
        if unmap_first {
            unmap(&mut model);
            assert_eq!(driver_bytes(&model, Some(1)), 4096);
            release(&mut model);
        } else {
            release(&mut model);
            assert_eq!(driver_bytes(&model, Some(1)), 4096);
            unmap(&mut model);
        }
        assert_eq!(driver_bytes(&model, Some(1)), 0);
    }
}

#[test]
fn memory_without_a_handle_can_be_held_again_while_it_is_mapped() {
    let mut model = attached();
    model.call(0, "cuMemCreate", Phase::Done, 7, 4096, 1, 1);
    model.call(0, "cuMemMap", Phase::Done, 0x10_0000, 4096, 7, 0);
    model.call(0, "cuMemRelease", Phase::Begun, 7, 0, 0, 0);
    model.call(0, "cuMemRetainAllocationHandle", Phase::Done, 9, 0, 0x10_0008, 0);
    model.call(0, "cuMemUnmap", Phase::Begun, 0x10_0000, 4096, 0, 0);
    assert_eq!(driver_bytes(&model, Some(1)), 4096, "held by the new handle");
    model.call(0, "cuMemRelease", Phase::Begun, 9, 0, 0, 0);
    assert_eq!(driver_bytes(&model, Some(1)), 0);
}

#[test]
fn a_handle_may_be_given_to_other_memory_while_the_first_is_mapped() {
    let mut model = attached();
    model.call(0, "cuMemCreate", Phase::Done, 7, 100, 0, 1);
    model.call(0, "cuMemMap", Phase::Done, 0x1000, 100, 7, 0);
    model.call(0, "cuMemRelease", Phase::Begun, 7, 0, 0, 0);
    model.call(0, "cuMemCreate", Phase::Done, 7, 30, 0, 1);
    assert_eq!(driver_bytes(&model, Some(0)), 130);
    model.call(0, "cuMemUnmap", Phase::Begun, 0x1000, 100, 0, 0);
    assert_eq!(driver_bytes(&model, Some(0)), 30);
}

#[test]
fn free_segments_of_private_pools_are_not_releasable() {
    let device = Device(0);
    let totals = |allocated, reserved| Some(AllocatorTotals { allocated, reserved });
    let mut model = attached();
    let private = |model: &mut Model, address, size| {
        let event = model.event(0, EventKind::SegmentPrivate(device), address, size);
        model.deliver(event, 0);
    };
    let report = |model: &mut Model, address, size, free, totals| {
        let facts = PoolFacts { pool: PoolId::pytorch(device), totals, requested: None };
        let kind = if free { EventKind::PoolFree(facts) } else { EventKind::PoolAlloc(facts) };
        let event = model.event(0, kind, address, size);
        model.deliver(event, 1);
    };
    let releasable = |model: &Model| model.ledger.devices()[0].releasable_bytes;
    // One segment of each kind, one block in each.
    model.driver_alloc(0, 0x1000, 0x1000, 1);
    report(&mut model, 0x1000, 0x800, false, totals(0x800, 0x1000));
    model.driver_alloc(0, 0x8000, 0x1000, 1);
    private(&mut model, 0x8000, 0x1000);
    report(&mut model, 0x8000, 0x800, false, totals(0x1000, 0x2000));
    report(&mut model, 0x1000, 0x800, true, totals(0x800, 0x2000));
    report(&mut model, 0x8000, 0x800, true, totals(0, 0x2000));
    assert_eq!(releasable(&model), Some(0x1000));
    // The address is private no longer than the segment.
    model.driver_free(0, Phase::Begun, 0x8000);
    model.driver_alloc(0, 0x8000, 0x1000, 1);
    report(&mut model, 0x8000, 0x800, false, totals(0x800, 0x2000));
    report(&mut model, 0x8000, 0x800, true, totals(0, 0x2000));
    assert_eq!(releasable(&model), Some(0x2000));
    // A version that does not say which segments are private.
    private(&mut model, 0, 0);
    assert_eq!(releasable(&model), None);
}

#[test]
fn a_release_that_fails_gives_the_hold_back_to_the_same_memory() {
    let mut model = attached();
    let release = |model: &mut Model, handle, phase| {
        model.call(0, "cuMemRelease", phase, handle, 0, 0, 0);
    };
    model.call(0, "cuMemCreate", Phase::Done, 7, 100, 0, 1);
    model.call(0, "cuMemMap", Phase::Done, 0x1000, 100, 7, 0);
    model.call(0, "cuMemCreate", Phase::Done, 8, 30, 0, 1);
    // The last hold of what is still mapped, and a handle from before attach.
    for handle in [7, 99] {
        release(&mut model, handle, Phase::Begun);
        release(&mut model, handle, Phase::Failed(1));
    }
    release(&mut model, 8, Phase::Begun);
    assert_eq!(driver_bytes(&model, Some(0)), 100);
    model.call(0, "cuMemUnmap", Phase::Begun, 0x1000, 100, 0, 0);
    assert_eq!(driver_bytes(&model, Some(0)), 100, "its handle is still held");
    release(&mut model, 7, Phase::Begun);
    assert_eq!(driver_bytes(&model, Some(0)), 0);
}

#[test]
fn memory_of_other_processes_is_open_until_it_is_closed_and_unmapped() {
    let mut model = attached();
    model.call(0, "cuIpcOpenMemHandle_v2", Phase::Done, 0x9000, 0, 0, 0);
    model.call(0, "cuMemImportFromShareableHandle", Phase::Done, 7, 0, 0, 0);
    model.call(0, "cuMemMap", Phase::Done, 0x1000, 100, 7, 0);
    assert_eq!(model.ledger.imported(), 2);
    // Neither what is unknown nor what fails closes anything.
    for address in [0x9000, 0x8000] {
        model.call(0, "cuIpcCloseMemHandle", Phase::Begun, address, 0, 0, 0);
        model.call(0, "cuIpcCloseMemHandle", Phase::Failed(1), address, 0, 0, 0);
    }
    assert_eq!(model.ledger.imported(), 2);
    model.call(0, "cuIpcCloseMemHandle", Phase::Begun, 0x9000, 0, 0, 0);
    model.call(0, "cuMemRelease", Phase::Begun, 7, 0, 0, 0);
    assert_eq!(model.ledger.imported(), 1, "still mapped");
    model.call(0, "cuMemUnmap", Phase::Begun, 0x1000, 100, 0, 0);
    assert_eq!(model.ledger.imported(), 0);
    assert_eq!(model.ledger.sites().map(|(_, totals)| totals.live_bytes).sum::<u64>(), 0);
}

#[test]
fn a_thread_allocates_on_the_device_of_its_context() {
    let mut model = attached();
    model.call(0, "cuDevicePrimaryCtxRetain", Phase::Done, 0xc0, 0, 0, 0);
    model.call(0, "cuDevicePrimaryCtxRetain", Phase::Done, 0xc1, 0, 1, 0);
    model.call(0, "cuCtxSetCurrent", Phase::Done, 0xc1, 0, 0, 0);
    model.driver_alloc(0, 0x1000, 10, 1);
    model.call(0, "cuCtxPushCurrent_v2", Phase::Done, 0xc0, 0, 0, 0);
    model.driver_alloc(0, 0x2000, 20, 1);
    model.call(0, "cuCtxPopCurrent_v2", Phase::Done, 0, 0, 0, 0);
    model.driver_alloc(0, 0x3000, 30, 1);
    model.driver_alloc(1, 0x4000, 40, 1);
    let bytes = |model: &Model| [Some(0), Some(1), None].map(|device| driver_bytes(model, device));
    assert_eq!(bytes(&model), [20, 40, 40]);
    // Resetting a device takes what was allocated in its context, and nothing else.
    model.call(0, "cuDevicePrimaryCtxReset_v2", Phase::Done, 0, 0, 1, 0);
    assert_eq!(bytes(&model), [20, 0, 40]);
}

#[test]
fn the_last_release_of_a_context_is_its_end_only_if_every_retain_was_seen() {
    for whole in [false, true] {
        let mut model = attached();
        if whole {
            model.ledger.note_whole();
        }
        model.call(0, "cuDevicePrimaryCtxRetain", Phase::Done, 0xc0, 0, 0, 0);
        model.call(0, "cuCtxSetCurrent", Phase::Done, 0xc0, 0, 0, 0);
        model.driver_alloc(0, 0x1000, 10, 1);
        model.call(0, "cuDevicePrimaryCtxRelease_v2", Phase::Done, 0, 0, 0, 0);
        assert_eq!(driver_bytes(&model, Some(0)), if whole { 0 } else { 10 });
    }
}

#[test]
fn page_locked_memory_is_no_device_memory() {
    let mut model = attached();
    model.call(0, "cuMemHostAlloc", Phase::Done, 0x1000, 100, 0, 1);
    model.call(0, "cuMemHostRegister_v2", Phase::Done, 0x9000, 50, 0, 2);
    assert_eq!((model.ledger.pinned_bytes(), driver_bytes(&model, None)), (150, 0));
    model.call(0, "cuMemFreeHost", Phase::Begun, 0x1000, 0, 0, 0);
    model.call(0, "cuMemHostUnregister", Phase::Begun, 0x9000, 0, 0, 0);
    model.call(0, "cuMemHostUnregister", Phase::Failed(1), 0x9000, 0, 0, 0);
    assert_eq!(model.ledger.pinned_bytes(), 50);
}

/// An event of a BFC allocator: a block of `size` bytes.
fn bfc(model: &mut Model, instance: u64, address: u64, size: u64, stack: Option<u32>) {
    untold(model, PoolId { level: Level::Tensorflow, instance }, address, size, stack);
}

/// An event of a pool that tells no totals.
fn untold(model: &mut Model, pool: PoolId, address: u64, size: u64, stack: Option<u32>) {
    let facts = PoolFacts { pool, totals: None, requested: Some(size) };
    let kind = match stack {
        Some(_) => EventKind::PoolAlloc(facts),
        None => EventKind::PoolFree(facts),
    };
    let event = model.event(0, kind, address, size);
    model.deliver(event, stack.unwrap_or(0));
}

#[test]
fn a_device_is_the_sum_of_its_pools() {
    let mut model = attached();
    let name = |model: &mut Model, instance, name: &str| {
        let pool = PoolId { level: Level::Tensorflow, instance };
        model.ledger.define_pool(pool, name.to_owned());
    };
    name(&mut model, 0xa, "GPU_0_bfc");
    name(&mut model, 0xb, "GPU_collectivememory_0_bfc");
    name(&mut model, 0xc, "bfc_cpu_allocator_for_gpu");
    model.driver_alloc(0, 0x10_0000, 1000, 1);
    model.driver_alloc(0, 0x20_0000, 500, 1);
    bfc(&mut model, 0xa, 0x10_0000, 100, Some(2));
    bfc(&mut model, 0xa, 0x10_0100, 200, Some(2));
    bfc(&mut model, 0xb, 0x20_0000, 50, Some(3));
    bfc(&mut model, 0xc, 0x7000, 7, Some(4));
    bfc(&mut model, 0xa, 0x10_0000, 100, None);
    model.driver_alloc(0, 0x50_0000, SEGMENT, 5);
    let facts = PoolFacts {
        pool: PoolId::pytorch(Device(0)),
        totals: Some(AllocatorTotals { allocated: 512, reserved: SEGMENT }),
        requested: None,
    };
    let event = model.event(0, EventKind::PoolAlloc(facts), 0x50_0000, 512);
    model.deliver(event, 5);
    let device = model.device(0).unwrap();
    let reserved = 1500 + SEGMENT;
    assert_eq!((device.allocated_bytes, device.reserved_bytes), (Some(762), Some(reserved)));
    assert_eq!(device.driver_bytes, reserved);
    let pools = model.ledger.pools();
    let names: Vec<_> = pools.iter().map(|pool| pool.name.as_deref()).collect();
    let [pytorch, host, first, second] = names[..] else { panic!("{names:?}") };
    assert_eq!((pytorch, host), (None, Some("bfc_cpu_allocator_for_gpu")));
    assert_eq!((first, second), (Some("GPU_0_bfc"), Some("GPU_collectivememory_0_bfc")));
    assert_eq!((pools[1].allocated_bytes, pools[1].reserved_bytes), (Some(7), None));
    assert_eq!((pools[2].allocated_bytes, pools[2].peak_allocated_bytes), (Some(200), Some(300)));
    assert_eq!(model.ledger.accuracy(), Accuracy::default());
}

#[test]
fn what_a_late_pool_had_before_is_not_known() {
    let mut model = attached();
    model.ledger.note_late(Level::Tensorflow);
    let pool = PoolId { level: Level::Tensorflow, instance: 0xa };
    model.ledger.define_pool(pool, "GPU_1_bfc".to_owned());
    bfc(&mut model, 0xa, 0x1000, 100, Some(2));
    bfc(&mut model, 0xa, 0x9000, 4000, None);
    let device = model.device(1).unwrap();
    assert_eq!((device.allocated_bytes, device.before_attach), (None, None));
    assert_eq!(model.ledger.pools()[0].traced_bytes, 100);
    assert_eq!(model.ledger.accuracy(), Accuracy::default(), "a block from before may go");
}

#[test]
fn an_arena_is_of_the_device_that_its_first_block_lies_in() {
    let mut model = attached();
    let arena = |instance| PoolId { level: Level::Onnxruntime, instance };
    model.ledger.define_pool(arena(0xa), "Cuda".to_owned());
    model.ledger.define_pool(arena(0xb), "Cpu".to_owned());
    model.call(0, "cuDevicePrimaryCtxRetain", Phase::Done, 0xc1, 0, 1, 0);
    model.call(0, "cuCtxSetCurrent", Phase::Done, 0xc1, 0, 0, 0);
    model.driver_alloc(0, 0x10_0000, 1000, 1);
    untold(&mut model, arena(0xa), 0x10_0000, 100, Some(2));
    untold(&mut model, arena(0xb), 0x7000, 7, Some(3));
    // Frees do not tell the size.
    untold(&mut model, arena(0xb), 0x7000, 0, None);
    let pools = model.ledger.pools();
    let [host, of_device] = &pools[..] else { panic!("{pools:?}") };
    assert_eq!((host.device, host.allocated_bytes, host.reserved_bytes), (None, Some(0), None));
    assert_eq!((of_device.device, of_device.allocated_bytes), (Some(Device(1)), Some(100)));
    let device = model.device(1).unwrap();
    assert_eq!((device.driver_bytes, device.reserved_bytes), (1000, Some(1000)));
    assert_eq!(model.ledger.accuracy(), Accuracy::default());
    untold(&mut model, arena(0xb), 0x7000, 0, None);
    assert_eq!(model.ledger.accuracy().unmatched_frees, 1);
}

#[test]
fn a_call_of_the_runtime_counts_like_one_of_the_driver() {
    let mut model = attached();
    let call = |model: &mut Model, symbol, phase, address, size| {
        model.call(0, symbol, phase, address, size, 0, 1);
    };
    call(&mut model, "cudaMalloc", Phase::Done, 0x1000, 100);
    call(&mut model, "cuMemAlloc_v2", Phase::Done, 0x2000, 300);
    call(&mut model, "cudaHostAlloc", Phase::Done, 0x7000, 5000);
    assert_eq!(driver_bytes(&model, Some(0)) + driver_bytes(&model, None), 400);
    assert_eq!(model.ledger.pinned_bytes(), 5000);
    assert!(model.ledger.counted_at().eq([Layer::Driver, Layer::Runtime]));
    // Each is freed through the other layer, and a free that fails is none.
    call(&mut model, "cudaFree", Phase::Begun, 0x2000, 0);
    call(&mut model, "cudaFree", Phase::Failed(1), 0x2000, 0);
    assert_eq!(driver_bytes(&model, None), 300);
    call(&mut model, "cudaFree", Phase::Begun, 0x2000, 0);
    call(&mut model, "cuMemFree_v2", Phase::Begun, 0x1000, 0);
    call(&mut model, "cudaFreeHost", Phase::Begun, 0x7000, 0);
    assert_eq!(driver_bytes(&model, Some(0)) + driver_bytes(&model, None), 0);
    assert_eq!(model.ledger.pinned_bytes(), 0);
}

#[test]
fn a_thread_has_the_device_that_it_chose_or_the_first() {
    let mut model = attached();
    model.ledger.note_threads([Tid(0)]);
    let mut address = 0x1000;
    let mut allocate = |model: &mut Model, thread| {
        address += 0x1000;
        model.call(thread, "cudaMalloc", Phase::Done, address, 100, 0, 1);
    };
    // It may have chosen one before attach.
    allocate(&mut model, 0);
    assert_eq!(driver_bytes(&model, None), 100);
    allocate(&mut model, 1);
    assert_eq!(driver_bytes(&model, Some(0)), 100);
    model.call(0, "cudaSetDevice", Phase::Done, 0, 0, 1, 0);
    model.call(1, "cudaSetDevice", Phase::Failed(101), 0, 0, 0, 0);
    allocate(&mut model, 0);
    allocate(&mut model, 1);
    assert_eq!(driver_bytes(&model, Some(0)), 200);
    assert_eq!(driver_bytes(&model, Some(1)), 100);
    // What the upper half of a register holds is not part of an `int`.
    model.call(1, "cudaSetDevice", Phase::Done, 0, 0, 0xdead_0000_0001, 0);
    allocate(&mut model, 1);
    assert_eq!(driver_bytes(&model, Some(1)), 200);
    // Resets the device of the thread, and no other's.
    model.call(0, "cudaDeviceReset", Phase::Done, 0, 0, 0, 0);
    assert_eq!(driver_bytes(&model, Some(1)), 0);
    assert_eq!(driver_bytes(&model, Some(0)), 200);
    model.call(2, "cuDevicePrimaryCtxReset", Phase::Done, 0, 0, 0, 0);
    assert_eq!(driver_bytes(&model, Some(0)), 0);
}

#[test]
fn a_context_from_before_attach_is_that_of_the_device_chosen_in_it() {
    let mut model = attached();
    model.ledger.note_threads([Tid(0)]);
    model.call(0, "cuCtxSetCurrent", Phase::Done, 0xc0, 0, 0, 0);
    model.driver_alloc(0, 0x1000, 100, 1);
    assert_eq!(driver_bytes(&model, None), 100);
    model.call(0, "cudaSetDevice", Phase::Done, 0, 0, 1, 0);
    model.driver_alloc(0, 0x2000, 300, 1);
    assert_eq!(driver_bytes(&model, Some(1)), 300);
    // Another one, of which nothing is known.
    model.call(0, "cuCtxSetCurrent", Phase::Done, 0xc1, 0, 0, 0);
    model.driver_alloc(0, 0x3000, 700, 1);
    assert_eq!(driver_bytes(&model, None), 800);
    // One whose device was seen.
    model.call(0, "cuDevicePrimaryCtxRetain", Phase::Done, 0xc1, 0, 2, 0);
    model.driver_alloc(0, 0x4000, 900, 1);
    assert_eq!(driver_bytes(&model, Some(2)), 900);
}
