using System;

namespace Trireme
{
    // Every operation for arrays: C# does not find out T where an array becomes a span or a memory.
    public sealed partial class Communicator
    {
        /// <summary>Reduces over all ranks, in place.</summary>
        public void AllReduce<T>(
            T[] data, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            AllReduce<T>(Given(data, nameof(data)).AsSpan(), reduction, options);
        }

        /// <summary>Reduces over all ranks and gives every rank the result.</summary>
        public void AllReduce<T>(
            T[] send, T[] receive, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            AllReduce<T>(
                Given(send, nameof(send)).AsSpan(), Given(receive, nameof(receive)).AsSpan(),
                reduction, options);
        }

        /// <summary>Reduces equal blocks and gives rank r block r.</summary>
        public void ReduceScatter<T>(
            T[] send, T[] receive, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            ReduceScatter<T>(
                Given(send, nameof(send)).AsSpan(), Given(receive, nameof(receive)).AsSpan(),
                reduction, options);
        }

        /// <summary>Reduces unequal blocks and gives rank r block r.</summary>
        public void ReduceScatter<T>(
            T[] send, T[] receive, int[] counts, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            ReduceScatter<T>(
                Given(send, nameof(send)).AsSpan(), Given(receive, nameof(receive)).AsSpan(),
                Given(counts, nameof(counts)), reduction, options);
        }

        /// <summary>Gives every rank the equal blocks of all ranks.</summary>
        public void AllGather<T>(
            T[] send, T[] receive,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            AllGather<T>(
                Given(send, nameof(send)).AsSpan(), Given(receive, nameof(receive)).AsSpan(),
                options);
        }

        /// <summary>Gives every rank the unequal blocks of all ranks.</summary>
        public void AllGather<T>(
            T[] send, T[] receive, int[] counts,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            AllGather<T>(
                Given(send, nameof(send)).AsSpan(), Given(receive, nameof(receive)).AsSpan(),
                Given(counts, nameof(counts)), options);
        }

        /// <summary>Gives rank r block r of every rank.</summary>
        public void AllToAll<T>(
            T[] send, T[] receive,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            AllToAll<T>(
                Given(send, nameof(send)).AsSpan(), Given(receive, nameof(receive)).AsSpan(),
                options);
        }

        /// <summary>Gives rank r block r of every rank; blocks may differ in length.</summary>
        public void AllToAll<T>(
            T[] send, int[] sendCounts, T[] receive, int[] receiveCounts,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            AllToAll<T>(
                Given(send, nameof(send)).AsSpan(), Given(sendCounts, nameof(sendCounts)),
                Given(receive, nameof(receive)).AsSpan(),
                Given(receiveCounts, nameof(receiveCounts)), options);
        }

        /// <summary>Gives every rank the root's elements.</summary>
        public void Broadcast<T>(
            T[] data, int root,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Broadcast<T>(Given(data, nameof(data)).AsSpan(), root, options);
        }

        /// <summary>Reduces over all ranks; the root gets the result in place.</summary>
        public void Reduce<T>(
            T[] data, int root, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Reduce<T>(Given(data, nameof(data)).AsSpan(), root, reduction, options);
        }

        /// <summary>
        /// Reduces over all ranks to the root; the others may give null to receive.
        /// </summary>
        public void Reduce<T>(
            T[] send, T[] receive, int root, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Reduce<T>(
                Given(send, nameof(send)).AsSpan(), receive.AsSpan(), root, reduction, options);
        }

        /// <summary>
        /// Gives the root the equal blocks of all ranks; the others may give null to receive.
        /// </summary>
        public void Gather<T>(
            T[] send, T[] receive, int root,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Gather<T>(Given(send, nameof(send)).AsSpan(), receive.AsSpan(), root, options);
        }

        /// <summary>
        /// Gives the root the unequal blocks of all ranks; the others may give null to receive.
        /// </summary>
        public void Gather<T>(
            T[] send, T[] receive, int[] counts, int root,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Gather<T>(
                Given(send, nameof(send)).AsSpan(), receive.AsSpan(), Given(counts, nameof(counts)),
                root, options);
        }

        /// <summary>
        /// Gives rank r block r of the root's equal blocks; the others may give null to send.
        /// </summary>
        public void Scatter<T>(
            T[] send, T[] receive, int root,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Scatter<T>(send.AsSpan(), Given(receive, nameof(receive)).AsSpan(), root, options);
        }

        /// <summary>
        /// Gives rank r block r of the root's unequal blocks; the others may give null to send.
        /// </summary>
        public void Scatter<T>(
            T[] send, T[] receive, int[] counts, int root,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Scatter<T>(
                send.AsSpan(), Given(receive, nameof(receive)).AsSpan(),
                Given(counts, nameof(counts)), root, options);
        }

        /// <summary>Sends elements to one rank.</summary>
        public void Send<T>(
            T[] data, int to, ulong tag = 0,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Send<T>(Given(data, nameof(data)).AsSpan(), to, tag, options);
        }

        /// <summary>Receives elements from one rank.</summary>
        public void Receive<T>(
            T[] data, int from, ulong tag = 0,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Receive<T>(Given(data, nameof(data)).AsSpan(), from, tag, options);
        }

        /// <summary>Starts <see cref="AllReduce{T}(T[], Reduction, OperationOptions)"/>.</summary>
        public Request StartAllReduce<T>(
            T[] data, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return StartAllReduce<T>(Given(data, nameof(data)).AsMemory(), reduction, options);
        }

        /// <summary>
        /// Starts <see cref="AllReduce{T}(T[], T[], Reduction, OperationOptions)"/>.
        /// </summary>
        public Request StartAllReduce<T>(
            T[] send, T[] receive, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return StartAllReduce<T>(
                Given(send, nameof(send)).AsMemory(), Given(receive, nameof(receive)).AsMemory(),
                reduction, options);
        }

        /// <summary>
        /// Starts <see cref="ReduceScatter{T}(T[], T[], Reduction, OperationOptions)"/>.
        /// </summary>
        public Request StartReduceScatter<T>(
            T[] send, T[] receive, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return StartReduceScatter<T>(
                Given(send, nameof(send)).AsMemory(), Given(receive, nameof(receive)).AsMemory(),
                reduction, options);
        }

        /// <summary>
        /// Starts <see cref="ReduceScatter{T}(T[], T[], int[], Reduction, OperationOptions)"/>.
        /// </summary>
        public Request StartReduceScatter<T>(
            T[] send, T[] receive, int[] counts, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return StartReduceScatter<T>(
                Given(send, nameof(send)).AsMemory(), Given(receive, nameof(receive)).AsMemory(),
                Given(counts, nameof(counts)), reduction, options);
        }

        /// <summary>Starts <see cref="AllGather{T}(T[], T[], OperationOptions)"/>.</summary>
        public Request StartAllGather<T>(
            T[] send, T[] receive,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return StartAllGather<T>(
                Given(send, nameof(send)).AsMemory(), Given(receive, nameof(receive)).AsMemory(),
                options);
        }

        /// <summary>Starts <see cref="AllGather{T}(T[], T[], int[], OperationOptions)"/>.</summary>
        public Request StartAllGather<T>(
            T[] send, T[] receive, int[] counts,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return StartAllGather<T>(
                Given(send, nameof(send)).AsMemory(), Given(receive, nameof(receive)).AsMemory(),
                Given(counts, nameof(counts)), options);
        }

        /// <summary>Starts <see cref="AllToAll{T}(T[], T[], OperationOptions)"/>.</summary>
        public Request StartAllToAll<T>(
            T[] send, T[] receive,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return StartAllToAll<T>(
                Given(send, nameof(send)).AsMemory(), Given(receive, nameof(receive)).AsMemory(),
                options);
        }

        /// <summary>
        /// Starts <see cref="AllToAll{T}(T[], int[], T[], int[], OperationOptions)"/>.
        /// </summary>
        public Request StartAllToAll<T>(
            T[] send, int[] sendCounts, T[] receive, int[] receiveCounts,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return StartAllToAll<T>(
                Given(send, nameof(send)).AsMemory(), Given(sendCounts, nameof(sendCounts)),
                Given(receive, nameof(receive)).AsMemory(),
                Given(receiveCounts, nameof(receiveCounts)), options);
        }

        /// <summary>Starts <see cref="Broadcast{T}(T[], int, OperationOptions)"/>.</summary>
        public Request StartBroadcast<T>(
            T[] data, int root,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return StartBroadcast<T>(Given(data, nameof(data)).AsMemory(), root, options);
        }

        /// <summary>
        /// Starts <see cref="Reduce{T}(T[], int, Reduction, OperationOptions)"/>.
        /// </summary>
        public Request StartReduce<T>(
            T[] data, int root, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return StartReduce<T>(Given(data, nameof(data)).AsMemory(), root, reduction, options);
        }

        /// <summary>
        /// Starts <see cref="Reduce{T}(T[], T[], int, Reduction, OperationOptions)"/>.
        /// </summary>
        public Request StartReduce<T>(
            T[] send, T[] receive, int root, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return StartReduce<T>(
                Given(send, nameof(send)).AsMemory(), receive.AsMemory(), root, reduction, options);
        }

        /// <summary>Starts <see cref="Gather{T}(T[], T[], int, OperationOptions)"/>.</summary>
        public Request StartGather<T>(
            T[] send, T[] receive, int root,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return StartGather<T>(
                Given(send, nameof(send)).AsMemory(), receive.AsMemory(), root, options);
        }

        /// <summary>
        /// Starts <see cref="Gather{T}(T[], T[], int[], int, OperationOptions)"/>.
        /// </summary>
        public Request StartGather<T>(
            T[] send, T[] receive, int[] counts, int root,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return StartGather<T>(
                Given(send, nameof(send)).AsMemory(), receive.AsMemory(),
                Given(counts, nameof(counts)), root, options);
        }

        /// <summary>Starts <see cref="Scatter{T}(T[], T[], int, OperationOptions)"/>.</summary>
        public Request StartScatter<T>(
            T[] send, T[] receive, int root,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return StartScatter<T>(
                send.AsMemory(), Given(receive, nameof(receive)).AsMemory(), root, options);
        }

        /// <summary>
        /// Starts <see cref="Scatter{T}(T[], T[], int[], int, OperationOptions)"/>.
        /// </summary>
        public Request StartScatter<T>(
            T[] send, T[] receive, int[] counts, int root,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return StartScatter<T>(
                send.AsMemory(), Given(receive, nameof(receive)).AsMemory(),
                Given(counts, nameof(counts)), root, options);
        }

        /// <summary>Starts <see cref="Send{T}(T[], int, ulong, OperationOptions)"/>.</summary>
        public Request StartSend<T>(
            T[] data, int to, ulong tag = 0,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return StartSend<T>(Given(data, nameof(data)).AsMemory(), to, tag, options);
        }

        /// <summary>Starts <see cref="Receive{T}(T[], int, ulong, OperationOptions)"/>.</summary>
        public Request StartReceive<T>(
            T[] data, int from, ulong tag = 0,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return StartReceive<T>(Given(data, nameof(data)).AsMemory(), from, tag, options);
        }

        /// <summary>Receives at most as many elements as there is room for.</summary>
        public MessageInfo ReceiveMessage<T>(
            T[] data, int from, ulong tag = 0, OperationOptions options = default(OperationOptions))
            where T : struct
        {
            return ReceiveMessage<T>(Given(data, nameof(data)).AsSpan(), from, tag, options);
        }

        /// <summary>
        /// Starts <see cref="ReceiveMessage{T}(T[], int, ulong, OperationOptions)"/>.
        /// </summary>
        public Request StartReceiveMessage<T>(
            T[] data, int from, ulong tag = 0, OperationOptions options = default(OperationOptions))
            where T : struct
        {
            return StartReceiveMessage<T>(
                Given(data, nameof(data)).AsMemory(), from, tag, options);
        }

        /// <summary>Sends to one rank and receives from one, both at once.</summary>
        public void SendReceive<T>(
            T[] send, int to, ulong sendTag, T[] receive, int from, ulong receiveTag,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            SendReceive<T>(
                Given(send, nameof(send)).AsSpan(), to, sendTag,
                Given(receive, nameof(receive)).AsSpan(), from, receiveTag, options);
        }

        private static T[] Given<T>(T[] array, string name)
        {
            return array ?? throw new ArgumentNullException(name);
        }
    }
}
