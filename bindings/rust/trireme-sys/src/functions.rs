//! Every exported function but those of models, which are in functions_training.rs.

use std::os::raw::{c_char, c_void};

use crate::*;

extern "C" {
    // version.h
    pub fn trireme_version() -> u32;
    pub fn trireme_build_info() -> *const c_char;
    pub fn trireme_capability(query: *const trireme_capability_query) -> trireme_status;
    // types.h
    pub fn trireme_dtype_size(dtype: trireme_dtype) -> u64;
    pub fn trireme_dtype_name(dtype: trireme_dtype) -> *const c_char;
    pub fn trireme_reduction_name(reduction: trireme_reduction) -> *const c_char;
    // status.h
    pub fn trireme_status_name(status: trireme_status) -> *const c_char;
    pub fn trireme_last_error() -> *const c_char;
    pub fn trireme_last_error_info(out_info: *mut trireme_error_info) -> trireme_status;
    // log.h
    pub fn trireme_set_log_callback(
        callback: trireme_log_callback,
        level: trireme_log_level,
        user_data: *mut c_void,
    ) -> trireme_status;
    // failpoint.h
    pub fn trireme_failpoint_count() -> u32;
    pub fn trireme_failpoint_name(index: u32) -> *const c_char;
    pub fn trireme_failpoint_set(text: *const c_char) -> trireme_status;
    pub fn trireme_failpoint_hits(name: *const c_char, out_hits: *mut u64) -> trireme_status;
    // request.h
    pub fn trireme_receive_message(
        communicator: *mut trireme_communicator,
        data: *mut c_void,
        capacity: u64,
        dtype: trireme_dtype,
        from: i32,
        tag: u64,
        options: *const trireme_operation_options,
        out_info: *mut trireme_message_info,
    ) -> trireme_status;
    pub fn trireme_receive_message_start(
        communicator: *mut trireme_communicator,
        data: *mut c_void,
        capacity: u64,
        dtype: trireme_dtype,
        from: i32,
        tag: u64,
        options: *const trireme_operation_options,
        out_request: *mut *mut trireme_request,
    ) -> trireme_status;
    pub fn trireme_receive_to_buffer(
        communicator: *mut trireme_communicator,
        dtype: trireme_dtype,
        from: i32,
        tag: u64,
        options: *const trireme_operation_options,
        out_info: *mut trireme_message_info,
        out_buffer: *mut *mut trireme_buffer,
    ) -> trireme_status;
    pub fn trireme_probe(
        communicator: *mut trireme_communicator,
        from: i32,
        tag: u64,
        options: *const trireme_operation_options,
        out_info: *mut trireme_message_info,
    ) -> trireme_status;
    pub fn trireme_probe_start(
        communicator: *mut trireme_communicator,
        from: i32,
        tag: u64,
        options: *const trireme_operation_options,
        out_request: *mut *mut trireme_request,
    ) -> trireme_status;
    pub fn trireme_send_receive(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        send_count: u64,
        to: i32,
        send_tag: u64,
        receive: *mut c_void,
        receive_count: u64,
        from: i32,
        receive_tag: u64,
        dtype: trireme_dtype,
        options: *const trireme_operation_options,
    ) -> trireme_status;
    pub fn trireme_request_message(
        request: *const trireme_request,
        out_info: *mut trireme_message_info,
    ) -> trireme_status;
    pub fn trireme_request_wait_all(
        requests: *const *const trireme_request,
        count: u64,
        timeout_ns: u64,
    ) -> trireme_status;
    pub fn trireme_request_test(
        request: *const trireme_request,
        out_done: *mut i32,
    ) -> trireme_status;
    pub fn trireme_request_wait(request: *const trireme_request, timeout_ns: u64)
        -> trireme_status;
    pub fn trireme_request_wait_any(
        requests: *const *const trireme_request,
        count: u64,
        timeout_ns: u64,
        out_index: *mut u64,
    ) -> trireme_status;
    pub fn trireme_request_cancel(request: *mut trireme_request) -> trireme_status;
    pub fn trireme_request_on_complete(
        request: *mut trireme_request,
        callback: trireme_completion_callback,
        user_data: *mut c_void,
    ) -> trireme_status;
    pub fn trireme_request_fd(request: *mut trireme_request, out_fd: *mut i32) -> trireme_status;
    pub fn trireme_request_destroy(request: *mut trireme_request);
    // buffer.h
    pub fn trireme_buffer_alloc(
        communicator: *mut trireme_communicator,
        bytes: u64,
        out_buffer: *mut *mut trireme_buffer,
    ) -> trireme_status;
    pub fn trireme_buffer_destroy(buffer: *mut trireme_buffer);
    pub fn trireme_buffer_data(
        buffer: *const trireme_buffer,
        out_data: *mut *mut c_void,
    ) -> trireme_status;
    pub fn trireme_buffer_size(
        buffer: *const trireme_buffer,
        out_bytes: *mut u64,
    ) -> trireme_status;
    // communicator.h
    pub fn trireme_communicator_create(
        options: *const trireme_communicator_options,
        out_communicator: *mut *mut trireme_communicator,
    ) -> trireme_status;
    pub fn trireme_communicator_destroy(communicator: *mut trireme_communicator);
    pub fn trireme_communicator_wait_ready(
        communicator: *const trireme_communicator,
        timeout_ns: u64,
    ) -> trireme_status;
    pub fn trireme_communicator_rank(
        communicator: *const trireme_communicator,
        out_rank: *mut i32,
    ) -> trireme_status;
    pub fn trireme_communicator_world_size(
        communicator: *const trireme_communicator,
        out_world_size: *mut i32,
    ) -> trireme_status;
    pub fn trireme_communicator_backend(
        communicator: *const trireme_communicator,
        text: *mut c_char,
        capacity: u64,
        out_length: *mut u64,
    ) -> trireme_status;
    pub fn trireme_communicator_abort(
        communicator: *mut trireme_communicator,
        reason: *const c_char,
    ) -> trireme_status;
    pub fn trireme_communicator_get_statistics(
        communicator: *const trireme_communicator,
        out_statistics: *mut trireme_communicator_statistics,
    ) -> trireme_status;
    pub fn trireme_communicator_flight_record(
        communicator: *const trireme_communicator,
        text: *mut c_char,
        capacity: u64,
        out_length: *mut u64,
    ) -> trireme_status;
    pub fn trireme_communicator_last_calls(
        communicator: *const trireme_communicator,
        text: *mut c_char,
        capacity: u64,
        out_length: *mut u64,
    ) -> trireme_status;
    pub fn trireme_communicator_ranks(
        communicator: *const trireme_communicator,
        out_ranks: *mut i32,
        capacity: u64,
    ) -> trireme_status;
    pub fn trireme_communicator_split(
        communicator: *mut trireme_communicator,
        color: i32,
        key: i32,
        options: *const trireme_group_options,
        out_communicator: *mut *mut trireme_communicator,
    ) -> trireme_status;
    pub fn trireme_communicator_subgroup(
        communicator: *mut trireme_communicator,
        ranks: *const i32,
        count: u64,
        options: *const trireme_group_options,
        out_communicator: *mut *mut trireme_communicator,
    ) -> trireme_status;
    // mesh.h
    pub fn trireme_mesh_create(
        communicator: *mut trireme_communicator,
        options: *const trireme_mesh_options,
        out_mesh: *mut *mut trireme_mesh,
    ) -> trireme_status;
    pub fn trireme_mesh_destroy(mesh: *mut trireme_mesh);
    pub fn trireme_mesh_axis_size(
        mesh: *const trireme_mesh,
        axis: *const c_char,
        out_size: *mut i32,
    ) -> trireme_status;
    pub fn trireme_mesh_coordinates(
        mesh: *const trireme_mesh,
        rank: i32,
        out_coordinates: *mut i32,
        capacity: u64,
    ) -> trireme_status;
    pub fn trireme_mesh_rank(
        mesh: *const trireme_mesh,
        coordinates: *const i32,
        count: u64,
        out_rank: *mut i32,
    ) -> trireme_status;
    pub fn trireme_mesh_group(
        mesh: *const trireme_mesh,
        axes: *const *const c_char,
        axis_count: u32,
        rank: i32,
        out_ranks: *mut i32,
        capacity: u64,
        out_count: *mut u64,
    ) -> trireme_status;
    pub fn trireme_mesh_axis_communicator(
        mesh: *const trireme_mesh,
        axis: *const c_char,
        out_communicator: *mut *mut trireme_communicator,
    ) -> trireme_status;
    pub fn trireme_mesh_axes_communicator(
        mesh: *const trireme_mesh,
        axes: *const *const c_char,
        axis_count: u32,
        options: *const trireme_group_options,
        out_communicator: *mut *mut trireme_communicator,
    ) -> trireme_status;
    // store.h
    pub fn trireme_store_serve(
        url: *const c_char,
        options: *const trireme_store_options,
        out_store: *mut *mut trireme_store,
    ) -> trireme_status;
    pub fn trireme_store_connect(
        url: *const c_char,
        options: *const trireme_store_options,
        out_store: *mut *mut trireme_store,
    ) -> trireme_status;
    pub fn trireme_store_destroy(store: *mut trireme_store);
    pub fn trireme_store_address(
        store: *const trireme_store,
        text: *mut c_char,
        capacity: u64,
        out_length: *mut u64,
    ) -> trireme_status;
    pub fn trireme_store_set(
        store: *mut trireme_store,
        key: *const c_char,
        value: *const c_void,
        size: u64,
    ) -> trireme_status;
    pub fn trireme_store_get(
        store: *mut trireme_store,
        key: *const c_char,
        value: *mut c_void,
        capacity: u64,
        out_size: *mut u64,
        out_found: *mut i32,
    ) -> trireme_status;
    pub fn trireme_store_wait(
        store: *mut trireme_store,
        keys: *const *const c_char,
        key_count: u64,
        timeout_ns: u64,
    ) -> trireme_status;
    pub fn trireme_store_add(
        store: *mut trireme_store,
        key: *const c_char,
        amount: i64,
        out_sum: *mut i64,
    ) -> trireme_status;
    pub fn trireme_store_compare_exchange(
        store: *mut trireme_store,
        key: *const c_char,
        expected: *const c_void,
        expected_size: u64,
        value: *const c_void,
        size: u64,
        out_exchanged: *mut i32,
    ) -> trireme_status;
    pub fn trireme_store_delete(
        store: *mut trireme_store,
        key: *const c_char,
        out_deleted: *mut i32,
    ) -> trireme_status;
    // communicator.h, continued
    pub fn trireme_communicator_agree(
        communicator: *mut trireme_communicator,
        flags: *mut u64,
        timeout_ns: u64,
    ) -> trireme_status;
    pub fn trireme_communicator_shrink(
        communicator: *mut trireme_communicator,
        options: *const trireme_group_options,
        out_communicator: *mut *mut trireme_communicator,
    ) -> trireme_status;
    pub fn trireme_communicator_duplicate(
        communicator: *mut trireme_communicator,
        options: *const trireme_group_options,
        out_communicator: *mut *mut trireme_communicator,
    ) -> trireme_status;
    // collectives.h
    pub fn trireme_algorithm_name(algorithm: trireme_algorithm) -> *const c_char;
    pub fn trireme_all_reduce(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        count: u64,
        dtype: trireme_dtype,
        reduction: trireme_reduction,
        options: *const trireme_operation_options,
    ) -> trireme_status;
    pub fn trireme_all_reduce_start(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        count: u64,
        dtype: trireme_dtype,
        reduction: trireme_reduction,
        options: *const trireme_operation_options,
        out_request: *mut *mut trireme_request,
    ) -> trireme_status;
    pub fn trireme_reduce_scatter(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        receive_count: u64,
        dtype: trireme_dtype,
        reduction: trireme_reduction,
        options: *const trireme_operation_options,
    ) -> trireme_status;
    pub fn trireme_reduce_scatter_start(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        receive_count: u64,
        dtype: trireme_dtype,
        reduction: trireme_reduction,
        options: *const trireme_operation_options,
        out_request: *mut *mut trireme_request,
    ) -> trireme_status;
    pub fn trireme_reduce_scatter_v(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        counts: *const u64,
        dtype: trireme_dtype,
        reduction: trireme_reduction,
        options: *const trireme_operation_options,
    ) -> trireme_status;
    pub fn trireme_reduce_scatter_v_start(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        counts: *const u64,
        dtype: trireme_dtype,
        reduction: trireme_reduction,
        options: *const trireme_operation_options,
        out_request: *mut *mut trireme_request,
    ) -> trireme_status;
    pub fn trireme_all_gather(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        send_count: u64,
        dtype: trireme_dtype,
        options: *const trireme_operation_options,
    ) -> trireme_status;
    pub fn trireme_all_gather_start(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        send_count: u64,
        dtype: trireme_dtype,
        options: *const trireme_operation_options,
        out_request: *mut *mut trireme_request,
    ) -> trireme_status;
    pub fn trireme_all_gather_v(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        counts: *const u64,
        dtype: trireme_dtype,
        options: *const trireme_operation_options,
    ) -> trireme_status;
    pub fn trireme_all_gather_v_start(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        counts: *const u64,
        dtype: trireme_dtype,
        options: *const trireme_operation_options,
        out_request: *mut *mut trireme_request,
    ) -> trireme_status;
    pub fn trireme_broadcast(
        communicator: *mut trireme_communicator,
        data: *mut c_void,
        count: u64,
        dtype: trireme_dtype,
        root: i32,
        options: *const trireme_operation_options,
    ) -> trireme_status;
    pub fn trireme_broadcast_start(
        communicator: *mut trireme_communicator,
        data: *mut c_void,
        count: u64,
        dtype: trireme_dtype,
        root: i32,
        options: *const trireme_operation_options,
        out_request: *mut *mut trireme_request,
    ) -> trireme_status;
    pub fn trireme_reduce(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        count: u64,
        dtype: trireme_dtype,
        reduction: trireme_reduction,
        root: i32,
        options: *const trireme_operation_options,
    ) -> trireme_status;
    pub fn trireme_reduce_start(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        count: u64,
        dtype: trireme_dtype,
        reduction: trireme_reduction,
        root: i32,
        options: *const trireme_operation_options,
        out_request: *mut *mut trireme_request,
    ) -> trireme_status;
    pub fn trireme_gather(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        send_count: u64,
        dtype: trireme_dtype,
        root: i32,
        options: *const trireme_operation_options,
    ) -> trireme_status;
    pub fn trireme_gather_start(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        send_count: u64,
        dtype: trireme_dtype,
        root: i32,
        options: *const trireme_operation_options,
        out_request: *mut *mut trireme_request,
    ) -> trireme_status;
    pub fn trireme_gather_v(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        counts: *const u64,
        dtype: trireme_dtype,
        root: i32,
        options: *const trireme_operation_options,
    ) -> trireme_status;
    pub fn trireme_gather_v_start(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        counts: *const u64,
        dtype: trireme_dtype,
        root: i32,
        options: *const trireme_operation_options,
        out_request: *mut *mut trireme_request,
    ) -> trireme_status;
    pub fn trireme_scatter(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        receive_count: u64,
        dtype: trireme_dtype,
        root: i32,
        options: *const trireme_operation_options,
    ) -> trireme_status;
    pub fn trireme_scatter_start(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        receive_count: u64,
        dtype: trireme_dtype,
        root: i32,
        options: *const trireme_operation_options,
        out_request: *mut *mut trireme_request,
    ) -> trireme_status;
    pub fn trireme_scatter_v(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        counts: *const u64,
        dtype: trireme_dtype,
        root: i32,
        options: *const trireme_operation_options,
    ) -> trireme_status;
    pub fn trireme_scatter_v_start(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        counts: *const u64,
        dtype: trireme_dtype,
        root: i32,
        options: *const trireme_operation_options,
        out_request: *mut *mut trireme_request,
    ) -> trireme_status;
    pub fn trireme_all_to_all(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        block_count: u64,
        dtype: trireme_dtype,
        options: *const trireme_operation_options,
    ) -> trireme_status;
    pub fn trireme_all_to_all_start(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        receive: *mut c_void,
        block_count: u64,
        dtype: trireme_dtype,
        options: *const trireme_operation_options,
        out_request: *mut *mut trireme_request,
    ) -> trireme_status;
    pub fn trireme_all_to_all_v(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        send_counts: *const u64,
        receive: *mut c_void,
        receive_counts: *const u64,
        dtype: trireme_dtype,
        options: *const trireme_operation_options,
    ) -> trireme_status;
    pub fn trireme_all_to_all_v_start(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        send_counts: *const u64,
        receive: *mut c_void,
        receive_counts: *const u64,
        dtype: trireme_dtype,
        options: *const trireme_operation_options,
        out_request: *mut *mut trireme_request,
    ) -> trireme_status;
    pub fn trireme_group_start() -> trireme_status;
    pub fn trireme_group_end() -> trireme_status;
    pub fn trireme_all_reduce_list(
        communicator: *mut trireme_communicator,
        sends: *const *const c_void,
        receives: *const *mut c_void,
        counts: *const u64,
        length: u64,
        dtype: trireme_dtype,
        reduction: trireme_reduction,
        options: *const trireme_operation_options,
    ) -> trireme_status;
    pub fn trireme_all_reduce_list_start(
        communicator: *mut trireme_communicator,
        sends: *const *const c_void,
        receives: *const *mut c_void,
        counts: *const u64,
        length: u64,
        dtype: trireme_dtype,
        reduction: trireme_reduction,
        options: *const trireme_operation_options,
        out_request: *mut *mut trireme_request,
    ) -> trireme_status;
    pub fn trireme_reduce_scatter_list(
        communicator: *mut trireme_communicator,
        sends: *const *const c_void,
        receives: *const *mut c_void,
        counts: *const u64,
        length: u64,
        dtype: trireme_dtype,
        reduction: trireme_reduction,
        options: *const trireme_operation_options,
    ) -> trireme_status;
    pub fn trireme_reduce_scatter_list_start(
        communicator: *mut trireme_communicator,
        sends: *const *const c_void,
        receives: *const *mut c_void,
        counts: *const u64,
        length: u64,
        dtype: trireme_dtype,
        reduction: trireme_reduction,
        options: *const trireme_operation_options,
        out_request: *mut *mut trireme_request,
    ) -> trireme_status;
    pub fn trireme_all_gather_list(
        communicator: *mut trireme_communicator,
        sends: *const *const c_void,
        receives: *const *mut c_void,
        counts: *const u64,
        length: u64,
        dtype: trireme_dtype,
        options: *const trireme_operation_options,
    ) -> trireme_status;
    pub fn trireme_all_gather_list_start(
        communicator: *mut trireme_communicator,
        sends: *const *const c_void,
        receives: *const *mut c_void,
        counts: *const u64,
        length: u64,
        dtype: trireme_dtype,
        options: *const trireme_operation_options,
        out_request: *mut *mut trireme_request,
    ) -> trireme_status;
    pub fn trireme_broadcast_list(
        communicator: *mut trireme_communicator,
        data: *const *mut c_void,
        counts: *const u64,
        length: u64,
        dtype: trireme_dtype,
        root: i32,
        options: *const trireme_operation_options,
    ) -> trireme_status;
    pub fn trireme_broadcast_list_start(
        communicator: *mut trireme_communicator,
        data: *const *mut c_void,
        counts: *const u64,
        length: u64,
        dtype: trireme_dtype,
        root: i32,
        options: *const trireme_operation_options,
        out_request: *mut *mut trireme_request,
    ) -> trireme_status;
    pub fn trireme_broadcast_to_buffer(
        communicator: *mut trireme_communicator,
        data: *const c_void,
        count: u64,
        dtype: trireme_dtype,
        root: i32,
        options: *const trireme_operation_options,
        out_buffer: *mut *mut trireme_buffer,
    ) -> trireme_status;
    pub fn trireme_scatter_to_buffer(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        counts: *const u64,
        dtype: trireme_dtype,
        root: i32,
        options: *const trireme_operation_options,
        out_buffer: *mut *mut trireme_buffer,
    ) -> trireme_status;
    pub fn trireme_all_gather_to_buffer(
        communicator: *mut trireme_communicator,
        send: *const c_void,
        send_count: u64,
        dtype: trireme_dtype,
        options: *const trireme_operation_options,
        out_counts: *mut u64,
        out_buffer: *mut *mut trireme_buffer,
    ) -> trireme_status;
    pub fn trireme_barrier(
        communicator: *mut trireme_communicator,
        options: *const trireme_operation_options,
    ) -> trireme_status;
    pub fn trireme_barrier_start(
        communicator: *mut trireme_communicator,
        options: *const trireme_operation_options,
        out_request: *mut *mut trireme_request,
    ) -> trireme_status;
    pub fn trireme_send(
        communicator: *mut trireme_communicator,
        data: *const c_void,
        count: u64,
        dtype: trireme_dtype,
        to: i32,
        tag: u64,
        options: *const trireme_operation_options,
    ) -> trireme_status;
    pub fn trireme_send_start(
        communicator: *mut trireme_communicator,
        data: *const c_void,
        count: u64,
        dtype: trireme_dtype,
        to: i32,
        tag: u64,
        options: *const trireme_operation_options,
        out_request: *mut *mut trireme_request,
    ) -> trireme_status;
    pub fn trireme_receive(
        communicator: *mut trireme_communicator,
        data: *mut c_void,
        count: u64,
        dtype: trireme_dtype,
        from: i32,
        tag: u64,
        options: *const trireme_operation_options,
    ) -> trireme_status;
    pub fn trireme_receive_start(
        communicator: *mut trireme_communicator,
        data: *mut c_void,
        count: u64,
        dtype: trireme_dtype,
        from: i32,
        tag: u64,
        options: *const trireme_operation_options,
        out_request: *mut *mut trireme_request,
    ) -> trireme_status;
}
