using System;
using System.IO;
using System.Reflection;
using System.Runtime.InteropServices;

namespace Trireme
{
    /// <summary>
    /// Every function of the native library under its own name, and where it is loaded from.
    /// Strings are UTF-8 pointers, so the marshaller never copies or frees one.
    /// </summary>
    internal static partial class NativeMethods
    {
        internal const int MaxBlamedRanks = 16;
        internal const int MaxStates = 8;
        internal const uint OptimizerCountersVersion = 1;
        internal const int AnySource = -1;
        internal const int TransportFrameBytesMin = 1024;
        internal const int MaxAxes = 16;

        /// <summary>What trireme_model_leaf() answers for "none".</summary>
        internal const uint NoLeaf = uint.MaxValue;

        // Found as libtrireme.so.1: on .NET by Resolve(), on Mono by Trireme.dll.config.
        private const string Library = "trireme";
        private const string SoName = "libtrireme.so.1";
        private const uint Major = 1;
        private const CallingConvention Cdecl = CallingConvention.Cdecl;

        static NativeMethods()
        {
            string chosen = Environment.GetEnvironmentVariable("TRIREME_LIBRARY");
            bool resolves = InstallResolver();
            uint version;
            try
            {
                version = trireme_version();
            }
            catch (DllNotFoundException problem)
            {
                throw new DllNotFoundException(
                    SoName + " does not load: " + problem.Message + ". TRIREME_LIBRARY is '" +
                    chosen + "'. On Mono the folder must be in LD_LIBRARY_PATH.");
            }

            if (!resolves && !string.IsNullOrEmpty(chosen))
            {
                CheckLoaded(chosen);
            }

            if (version / 1000000 != Major)
            {
                throw new DllNotFoundException(
                    SoName + " has version " + version + "; this binding needs major version " +
                    Major + ".");
            }
        }

        [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
        internal delegate void LogCallback(LogLevel level, IntPtr message, IntPtr userData);

        [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
        internal delegate void CompletionCallback(Status status, IntPtr userData);

        [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
        internal delegate int UpdateCallback(IntPtr update, IntPtr userData);

        [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
        internal delegate double ScheduleCallback(ulong step, IntPtr userData);

        [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
        internal delegate int TransportSendCallback(
            IntPtr userData, int to, IntPtr data, ulong bytes, ulong timeoutNs);

        [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
        internal unsafe delegate int TransportReceiveCallback(
            IntPtr userData, int* outFrom, IntPtr data, ulong capacity, ulong* outBytes,
            ulong timeoutNs);

        [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
        internal delegate void TransportReleasedCallback(IntPtr userData);

        [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
        internal delegate int BucketCallback(IntPtr bucket, IntPtr userData);

        // status.h
        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern IntPtr trireme_status_name(Status status);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern IntPtr trireme_last_error();

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_last_error_info(ref NativeErrorInfo outInfo);

        // types.h
        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern ulong trireme_dtype_size(ElementType dtype);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern IntPtr trireme_dtype_name(ElementType dtype);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern IntPtr trireme_reduction_name(Reduction reduction);

        // version.h
        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern uint trireme_version();

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern IntPtr trireme_build_info();

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_capability(ref NativeCapabilityQuery query);

        // log.h
        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_set_log_callback(
            LogCallback callback, LogLevel level, IntPtr userData);

        // failpoint.h
        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern uint trireme_failpoint_count();

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern IntPtr trireme_failpoint_name(uint index);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_failpoint_set(IntPtr text);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_failpoint_hits(IntPtr name, out ulong outHits);

        // communicator.h
        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_communicator_create(
            ref NativeCommunicatorOptions options, out CommunicatorHandle outCommunicator);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern void trireme_communicator_destroy(IntPtr communicator);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_communicator_wait_ready(
            CommunicatorHandle communicator, ulong timeoutNs);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_communicator_rank(
            CommunicatorHandle communicator, out int outRank);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_communicator_world_size(
            CommunicatorHandle communicator, out int outWorldSize);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_communicator_backend(
            CommunicatorHandle communicator, byte* text, ulong capacity, ulong* outLength);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_communicator_abort(
            CommunicatorHandle communicator, IntPtr reason);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_communicator_get_statistics(
            CommunicatorHandle communicator, ref NativeCommunicatorStatistics outStatistics);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_communicator_flight_record(
            CommunicatorHandle communicator, byte* text, ulong capacity, ulong* outLength);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_communicator_last_calls(
            CommunicatorHandle communicator, byte* text, ulong capacity, ulong* outLength);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_communicator_ranks(
            CommunicatorHandle communicator, int* outRanks, ulong capacity);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_communicator_split(
            CommunicatorHandle communicator, int color, int key, ref NativeGroupOptions options,
            out CommunicatorHandle outCommunicator);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_communicator_subgroup(
            CommunicatorHandle communicator, int* ranks, ulong count,
            ref NativeGroupOptions options, out CommunicatorHandle outCommunicator);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_communicator_duplicate(
            CommunicatorHandle communicator, ref NativeGroupOptions options,
            out CommunicatorHandle outCommunicator);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_communicator_agree(
            CommunicatorHandle communicator, ref ulong flags, ulong timeoutNs);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_communicator_shrink(
            CommunicatorHandle communicator, ref NativeGroupOptions options,
            out CommunicatorHandle outCommunicator);

        // mesh.h
        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_mesh_create(
            CommunicatorHandle communicator, ref NativeMeshOptions options, out MeshHandle outMesh);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern void trireme_mesh_destroy(IntPtr mesh);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_mesh_axis_size(
            MeshHandle mesh, IntPtr axis, out int outSize);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_mesh_coordinates(
            MeshHandle mesh, int rank, int* outCoordinates, ulong capacity);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_mesh_rank(
            MeshHandle mesh, int* coordinates, ulong count, out int outRank);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_mesh_group(
            MeshHandle mesh, IntPtr* axes, uint axisCount, int rank, int* outRanks,
            ulong capacity, out ulong outCount);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_mesh_axis_communicator(
            MeshHandle mesh, IntPtr axis, out IntPtr outCommunicator);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_mesh_axes_communicator(
            MeshHandle mesh, IntPtr* axes, uint axisCount, ref NativeGroupOptions options,
            out CommunicatorHandle outCommunicator);

        // store.h
        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_store_serve(
            IntPtr url, ref NativeStoreOptions options, out StoreHandle outStore);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_store_connect(
            IntPtr url, ref NativeStoreOptions options, out StoreHandle outStore);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern void trireme_store_destroy(IntPtr store);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_store_address(
            StoreHandle store, byte* text, ulong capacity, out ulong outLength);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_store_set(
            StoreHandle store, IntPtr key, void* value, ulong size);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_store_get(
            StoreHandle store, IntPtr key, void* value, ulong capacity, out ulong outSize,
            out int outFound);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_store_wait(
            StoreHandle store, IntPtr* keys, ulong keyCount, ulong timeoutNs);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_store_add(
            StoreHandle store, IntPtr key, long amount, out long outSum);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_store_compare_exchange(
            StoreHandle store, IntPtr key, void* expected, ulong expectedSize, void* value,
            ulong size, out int outExchanged);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_store_delete(
            StoreHandle store, IntPtr key, out int outDeleted);

        // request.h
        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_receive_message(
            CommunicatorHandle communicator, void* data, ulong capacity, ElementType dtype, int
            from, ulong tag, NativeOperationOptions* options, NativeMessageInfo* outInfo);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_receive_message_start(
            CommunicatorHandle communicator, void* data, ulong capacity, ElementType dtype, int
            from, ulong tag, NativeOperationOptions* options, out RequestHandle outRequest);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_receive_to_buffer(
            CommunicatorHandle communicator, ElementType dtype, int from, ulong tag,
            NativeOperationOptions* options, NativeMessageInfo* outInfo, out BufferHandle
            outBuffer);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_probe(
            CommunicatorHandle communicator, int from, ulong tag, NativeOperationOptions* options,
            NativeMessageInfo* outInfo);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_probe_start(
            CommunicatorHandle communicator, int from, ulong tag, NativeOperationOptions* options,
            out RequestHandle outRequest);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_send_receive(
            CommunicatorHandle communicator, void* send, ulong sendCount, int to, ulong sendTag,
            void* receive, ulong receiveCount, int from, ulong receiveTag, ElementType dtype,
            NativeOperationOptions* options);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_request_message(
            RequestHandle request, NativeMessageInfo* outInfo);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_request_wait_all(
            IntPtr* requests, ulong count, ulong timeoutNs);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_request_test(
            RequestHandle request, out int outDone);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_request_wait(
            RequestHandle request, ulong timeoutNs);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_request_wait_any(
            IntPtr* requests, ulong count, ulong timeoutNs, out ulong outIndex);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_request_cancel(RequestHandle request);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_request_on_complete(
            RequestHandle request, CompletionCallback callback, IntPtr userData);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_request_fd(
            RequestHandle request, out int outFd);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern void trireme_request_destroy(IntPtr request);

        // buffer.h
        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_buffer_alloc(
            CommunicatorHandle communicator, ulong bytes, out BufferHandle outBuffer);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern void trireme_buffer_destroy(IntPtr buffer);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_buffer_data(
            BufferHandle buffer, out IntPtr outData);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_buffer_size(
            BufferHandle buffer, out ulong outBytes);

        // collectives.h
        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern IntPtr trireme_algorithm_name(Algorithm algorithm);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_all_reduce(
            CommunicatorHandle communicator, void* send, void* receive, ulong count,
            ElementType dtype, Reduction reduction, NativeOperationOptions* options);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_all_reduce_start(
            CommunicatorHandle communicator, void* send, void* receive, ulong count,
            ElementType dtype, Reduction reduction, NativeOperationOptions* options,
            out RequestHandle outRequest);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_reduce_scatter(
            CommunicatorHandle communicator, void* send, void* receive, ulong receiveCount,
            ElementType dtype, Reduction reduction, NativeOperationOptions* options);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_reduce_scatter_start(
            CommunicatorHandle communicator, void* send, void* receive, ulong receiveCount,
            ElementType dtype, Reduction reduction, NativeOperationOptions* options,
            out RequestHandle outRequest);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_reduce_scatter_v(
            CommunicatorHandle communicator, void* send, void* receive, ulong* counts,
            ElementType dtype, Reduction reduction, NativeOperationOptions* options);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_reduce_scatter_v_start(
            CommunicatorHandle communicator, void* send, void* receive, ulong* counts,
            ElementType dtype, Reduction reduction, NativeOperationOptions* options,
            out RequestHandle outRequest);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_all_gather(
            CommunicatorHandle communicator, void* send, void* receive, ulong sendCount,
            ElementType dtype, NativeOperationOptions* options);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_all_gather_start(
            CommunicatorHandle communicator, void* send, void* receive, ulong sendCount,
            ElementType dtype, NativeOperationOptions* options, out RequestHandle outRequest);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_all_gather_v(
            CommunicatorHandle communicator, void* send, void* receive, ulong* counts,
            ElementType dtype, NativeOperationOptions* options);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_all_gather_v_start(
            CommunicatorHandle communicator, void* send, void* receive, ulong* counts,
            ElementType dtype, NativeOperationOptions* options, out RequestHandle outRequest);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_broadcast(
            CommunicatorHandle communicator, void* data, ulong count, ElementType dtype, int root,
            NativeOperationOptions* options);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_broadcast_start(
            CommunicatorHandle communicator, void* data, ulong count, ElementType dtype, int root,
            NativeOperationOptions* options, out RequestHandle outRequest);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_reduce(
            CommunicatorHandle communicator, void* send, void* receive, ulong count, ElementType
            dtype, Reduction reduction, int root, NativeOperationOptions* options);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_reduce_start(
            CommunicatorHandle communicator, void* send, void* receive, ulong count, ElementType
            dtype, Reduction reduction, int root, NativeOperationOptions* options, out RequestHandle
            outRequest);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_gather(
            CommunicatorHandle communicator, void* send, void* receive, ulong sendCount, ElementType
            dtype, int root, NativeOperationOptions* options);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_gather_start(
            CommunicatorHandle communicator, void* send, void* receive, ulong sendCount, ElementType
            dtype, int root, NativeOperationOptions* options, out RequestHandle outRequest);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_gather_v(
            CommunicatorHandle communicator, void* send, void* receive, ulong* counts, ElementType
            dtype, int root, NativeOperationOptions* options);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_gather_v_start(
            CommunicatorHandle communicator, void* send, void* receive, ulong* counts, ElementType
            dtype, int root, NativeOperationOptions* options, out RequestHandle outRequest);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_scatter(
            CommunicatorHandle communicator, void* send, void* receive, ulong receiveCount,
            ElementType dtype, int root, NativeOperationOptions* options);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_scatter_start(
            CommunicatorHandle communicator, void* send, void* receive, ulong receiveCount,
            ElementType dtype, int root, NativeOperationOptions* options, out RequestHandle
            outRequest);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_scatter_v(
            CommunicatorHandle communicator, void* send, void* receive, ulong* counts, ElementType
            dtype, int root, NativeOperationOptions* options);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_scatter_v_start(
            CommunicatorHandle communicator, void* send, void* receive, ulong* counts, ElementType
            dtype, int root, NativeOperationOptions* options, out RequestHandle outRequest);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_all_to_all(
            CommunicatorHandle communicator, void* send, void* receive, ulong blockCount,
            ElementType dtype, NativeOperationOptions* options);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_all_to_all_start(
            CommunicatorHandle communicator, void* send, void* receive, ulong blockCount,
            ElementType dtype, NativeOperationOptions* options, out RequestHandle outRequest);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_all_to_all_v(
            CommunicatorHandle communicator, void* send, ulong* sendCounts, void* receive, ulong*
            receiveCounts, ElementType dtype, NativeOperationOptions* options);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_all_to_all_v_start(
            CommunicatorHandle communicator, void* send, ulong* sendCounts, void* receive, ulong*
            receiveCounts, ElementType dtype, NativeOperationOptions* options, out RequestHandle
            outRequest);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_group_start();

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern Status trireme_group_end();

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_all_reduce_list(
            CommunicatorHandle communicator, void** sends, void** receives, ulong* counts, ulong
            length, ElementType dtype, Reduction reduction, NativeOperationOptions* options);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_all_reduce_list_start(
            CommunicatorHandle communicator, void** sends, void** receives, ulong* counts, ulong
            length, ElementType dtype, Reduction reduction, NativeOperationOptions* options, out
            RequestHandle outRequest);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_reduce_scatter_list(
            CommunicatorHandle communicator, void** sends, void** receives, ulong* counts, ulong
            length, ElementType dtype, Reduction reduction, NativeOperationOptions* options);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_reduce_scatter_list_start(
            CommunicatorHandle communicator, void** sends, void** receives, ulong* counts, ulong
            length, ElementType dtype, Reduction reduction, NativeOperationOptions* options, out
            RequestHandle outRequest);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_all_gather_list(
            CommunicatorHandle communicator, void** sends, void** receives, ulong* counts, ulong
            length, ElementType dtype, NativeOperationOptions* options);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_all_gather_list_start(
            CommunicatorHandle communicator, void** sends, void** receives, ulong* counts, ulong
            length, ElementType dtype, NativeOperationOptions* options, out RequestHandle
            outRequest);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_broadcast_list(
            CommunicatorHandle communicator, void** data, ulong* counts, ulong length, ElementType
            dtype, int root, NativeOperationOptions* options);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_broadcast_list_start(
            CommunicatorHandle communicator, void** data, ulong* counts, ulong length, ElementType
            dtype, int root, NativeOperationOptions* options, out RequestHandle outRequest);

        // An address, since the root may give null in its place.
        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_broadcast_to_buffer(
            CommunicatorHandle communicator, void* data, ulong count, ElementType dtype, int root,
            NativeOperationOptions* options, IntPtr* outBuffer);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_scatter_to_buffer(
            CommunicatorHandle communicator, void* send, ulong* counts, ElementType dtype, int root,
            NativeOperationOptions* options, out BufferHandle outBuffer);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_all_gather_to_buffer(
            CommunicatorHandle communicator, void* send, ulong sendCount, ElementType dtype,
            NativeOperationOptions* options, ulong* outCounts, out BufferHandle outBuffer);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_barrier(
            CommunicatorHandle communicator, NativeOperationOptions* options);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_barrier_start(
            CommunicatorHandle communicator, NativeOperationOptions* options,
            out RequestHandle outRequest);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_send(
            CommunicatorHandle communicator, void* data, ulong count, ElementType dtype, int to,
            ulong tag, NativeOperationOptions* options);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_send_start(
            CommunicatorHandle communicator, void* data, ulong count, ElementType dtype, int to,
            ulong tag, NativeOperationOptions* options, out RequestHandle outRequest);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_receive(
            CommunicatorHandle communicator, void* data, ulong count, ElementType dtype, int from,
            ulong tag, NativeOperationOptions* options);

        [DllImport(Library, CallingConvention = Cdecl, ExactSpelling = true)]
        internal static extern unsafe Status trireme_receive_start(
            CommunicatorHandle communicator, void* data, ulong count, ElementType dtype, int from,
            ulong tag, NativeOperationOptions* options, out RequestHandle outRequest);

        // .NET asks a resolver where a library is; the type is missing on Mono and .NET Framework.
        private static bool InstallResolver()
        {
            const string Namespace = "System.Runtime.InteropServices.";
            const string From = ", System.Runtime.InteropServices";
            Type loader = Type.GetType(Namespace + "NativeLibrary" + From);
            Type resolver = Type.GetType(Namespace + "DllImportResolver" + From);
            if (loader == null || resolver == null)
            {
                return false;
            }

            MethodInfo resolve = typeof(NativeMethods).GetMethod(
                nameof(Resolve), BindingFlags.Static | BindingFlags.NonPublic);
            loader.GetMethod("SetDllImportResolver").Invoke(
                null,
                new object[]
                {
                    typeof(NativeMethods).Assembly, Delegate.CreateDelegate(resolver, resolve),
                });
            return true;
        }

        private static IntPtr Resolve(
            string name, Assembly assembly, DllImportSearchPath? searchPath)
        {
            if (name != Library)
            {
                return IntPtr.Zero;
            }

            Type loader = Type.GetType(
                "System.Runtime.InteropServices.NativeLibrary, System.Runtime.InteropServices");
            string chosen = Environment.GetEnvironmentVariable("TRIREME_LIBRARY");
            if (!string.IsNullOrEmpty(chosen))
            {
                // Not found is an error and no reason to take another one in silence.
                MethodInfo load = loader.GetMethod("Load", new[] { typeof(string) });
                try
                {
                    return (IntPtr)load.Invoke(null, new object[] { FullPath(chosen) });
                }
                catch (TargetInvocationException invocation)
                {
                    throw new DllNotFoundException(invocation.InnerException.Message);
                }
            }

            MethodInfo tryLoad = loader.GetMethod(
                "TryLoad",
                new[]
                {
                    typeof(string), typeof(Assembly), typeof(DllImportSearchPath?),
                    typeof(IntPtr).MakeByRefType(),
                });
            var arguments = new object[] { SoName, assembly, searchPath, IntPtr.Zero };
            return (bool)tryLoad.Invoke(null, arguments) ? (IntPtr)arguments[3] : IntPtr.Zero;
        }

        // Mono looks for libraries before any code of ours runs, so here the variable can only be
        // compared with what was found.
        private static void CheckLoaded(string path)
        {
            const int NowIfLoaded = 2 | 4;
            using (var text = new Utf8(FullPath(path), nameof(path)))
            {
                if (dlopen(text.Pointer, NowIfLoaded) == IntPtr.Zero)
                {
                    throw new DllNotFoundException(
                        "TRIREME_LIBRARY names '" + path + "', but another " + SoName +
                        " was found. On Mono its folder must come first in LD_LIBRARY_PATH.");
                }
            }
        }

        private static string FullPath(string path)
        {
            return path.IndexOf('/') >= 0 ? Path.GetFullPath(path) : path;
        }

        [DllImport("libdl.so.2", CallingConvention = Cdecl, ExactSpelling = true)]
        private static extern IntPtr dlopen(IntPtr name, int flags);
    }
}
