using System;
using System.Buffers;
using System.Collections.Generic;
using System.Linq;
using System.Runtime.ExceptionServices;

namespace Trireme
{
    public sealed partial class Communicator
    {
        /// <summary>A batch without operations; see <see cref="Trireme.Batch"/>.</summary>
        public Batch Batch()
        {
            return new Batch(this);
        }
    }

    /// <summary>
    /// Operations that begin together in <see cref="End"/>, which waits for all of them. Sends and
    /// receives among them need no order; collectives run in the order they were added. Until the
    /// end nothing has begun: a batch that is only disposed of, because an exception left the
    /// block, does nothing. One thread at a time.
    /// <code>
    /// using (Batch batch = communicator.Batch())
    /// {
    ///     batch.Receive&lt;float&gt;(received, left);
    ///     batch.Send&lt;float&gt;(sent, right);
    ///     batch.End();
    /// }
    /// </code>
    /// </summary>
    // The calls are made between trireme_batch_begin and trireme_batch_end, with none of the
    // program's code there: a blocking call only begins inside a batch, and the spans it was given
    // would not stay where they are. So a call here pins its memory beyond the end of the batch.
    public sealed class Batch : IDisposable
    {
        private readonly Communicator communicator;
        private readonly Calls calls;

        internal Batch(Communicator communicator) : this(communicator, new Calls())
        {
        }

        private Batch(Communicator communicator, Calls calls)
        {
            this.communicator = communicator;
            this.calls = calls;
        }

        /// <summary>The same batch, for operations of another communicator.</summary>
        public Batch On(Communicator other)
        {
            if (other == null)
            {
                throw new ArgumentNullException(nameof(other));
            }

            return new Batch(other, calls);
        }

        /// <summary>Adds a send.</summary>
        public Batch Send<T>(
            ReadOnlyMemory<T> data, int to, ulong tag = 0,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return Add(() => communicator.Send(data.Span, to, tag, options), Pin(data));
        }

        /// <summary>Adds a receive.</summary>
        public Batch Receive<T>(
            Memory<T> data, int from, ulong tag = 0,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return Add(() => communicator.Receive(data.Span, from, tag, options), Pin<T>(data));
        }

        /// <summary>Adds an all-reduce in place.</summary>
        public Batch AllReduce<T>(
            Memory<T> data, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return Add(() => communicator.AllReduce(data.Span, reduction, options), Pin<T>(data));
        }

        /// <summary>Adds an all-reduce.</summary>
        public Batch AllReduce<T>(
            ReadOnlyMemory<T> send, Memory<T> receive, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return Add(
                () => communicator.AllReduce(send.Span, receive.Span, reduction, options),
                Pin(send), Pin<T>(receive));
        }

        /// <summary>Adds a reduce-scatter.</summary>
        public Batch ReduceScatter<T>(
            ReadOnlyMemory<T> send, Memory<T> receive, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return Add(
                () => communicator.ReduceScatter(send.Span, receive.Span, reduction, options),
                Pin(send), Pin<T>(receive));
        }

        /// <summary>Adds a reduce-scatter of blocks of different lengths.</summary>
        public Batch ReduceScatter<T>(
            ReadOnlyMemory<T> send, Memory<T> receive, int[] counts,
            Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            int[] own = Copy(counts);
            return Add(
                () => communicator.ReduceScatter(send.Span, receive.Span, own, reduction, options),
                Pin(send), Pin<T>(receive));
        }

        /// <summary>Adds an all-gather.</summary>
        public Batch AllGather<T>(
            ReadOnlyMemory<T> send, Memory<T> receive,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return Add(
                () => communicator.AllGather(send.Span, receive.Span, options),
                Pin(send), Pin<T>(receive));
        }

        /// <summary>Adds an all-gather of blocks of different lengths.</summary>
        public Batch AllGather<T>(
            ReadOnlyMemory<T> send, Memory<T> receive, int[] counts,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            int[] own = Copy(counts);
            return Add(
                () => communicator.AllGather(send.Span, receive.Span, own, options),
                Pin(send), Pin<T>(receive));
        }

        /// <summary>Adds an all-to-all.</summary>
        public Batch AllToAll<T>(
            ReadOnlyMemory<T> send, Memory<T> receive,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return Add(
                () => communicator.AllToAll(send.Span, receive.Span, options),
                Pin(send), Pin<T>(receive));
        }

        /// <summary>Adds an all-to-all of blocks of different lengths.</summary>
        public Batch AllToAll<T>(
            ReadOnlyMemory<T> send, int[] sendCounts, Memory<T> receive, int[] receiveCounts,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            int[] given = Copy(sendCounts);
            int[] gotten = Copy(receiveCounts);
            return Add(
                () => communicator.AllToAll(send.Span, given, receive.Span, gotten, options),
                Pin(send), Pin<T>(receive));
        }

        /// <summary>Adds a broadcast.</summary>
        public Batch Broadcast<T>(
            Memory<T> data, int root, OperationOptions options = default(OperationOptions))
            where T : struct
        {
            return Add(() => communicator.Broadcast(data.Span, root, options), Pin<T>(data));
        }

        /// <summary>Adds a reduce in place.</summary>
        public Batch Reduce<T>(
            Memory<T> data, int root, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return Add(
                () => communicator.Reduce(data.Span, root, reduction, options), Pin<T>(data));
        }

        /// <summary>Adds a reduce.</summary>
        public Batch Reduce<T>(
            ReadOnlyMemory<T> send, Memory<T> receive, int root,
            Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return Add(
                () => communicator.Reduce(send.Span, receive.Span, root, reduction, options),
                Pin(send), Pin<T>(receive));
        }

        /// <summary>Adds a gather.</summary>
        public Batch Gather<T>(
            ReadOnlyMemory<T> send, Memory<T> receive, int root,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return Add(
                () => communicator.Gather(send.Span, receive.Span, root, options),
                Pin(send), Pin<T>(receive));
        }

        /// <summary>Adds a gather of blocks of different lengths.</summary>
        public Batch Gather<T>(
            ReadOnlyMemory<T> send, Memory<T> receive, int[] counts, int root,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            int[] own = Copy(counts);
            return Add(
                () => communicator.Gather(send.Span, receive.Span, own, root, options),
                Pin(send), Pin<T>(receive));
        }

        /// <summary>Adds a scatter.</summary>
        public Batch Scatter<T>(
            ReadOnlyMemory<T> send, Memory<T> receive, int root,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            return Add(
                () => communicator.Scatter(send.Span, receive.Span, root, options),
                Pin(send), Pin<T>(receive));
        }

        /// <summary>Adds a scatter of blocks of different lengths.</summary>
        public Batch Scatter<T>(
            ReadOnlyMemory<T> send, Memory<T> receive, int[] counts, int root,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            int[] own = Copy(counts);
            return Add(
                () => communicator.Scatter(send.Span, receive.Span, own, root, options),
                Pin(send), Pin<T>(receive));
        }

        /// <summary>Adds a barrier.</summary>
        public Batch Barrier(OperationOptions options = default(OperationOptions))
        {
            return Add(() => communicator.Barrier(options));
        }

        /// <summary>Adds a send and a receive.</summary>
        public Batch SendReceive<T>(
            ReadOnlyMemory<T> send, int to, ulong sendTag, Memory<T> receive, int from,
            ulong receiveTag, OperationOptions options = default(OperationOptions))
            where T : struct
        {
            return Add(
                () => communicator.SendReceive(
                    send.Span, to, sendTag, receive.Span, from, receiveTag, options),
                Pin(send), Pin<T>(receive));
        }

        /// <summary>Adds an all-reduce of several buffers in place.</summary>
        public Batch AllReduceList<T>(
            IReadOnlyList<Memory<T>> data, Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Memory<T>[] own = data.ToArray();
            return Add(
                () => communicator.AllReduceList(own, reduction, options), Pins(own));
        }

        /// <summary>Adds a reduce-scatter of several buffers.</summary>
        public Batch ReduceScatterList<T>(
            IReadOnlyList<ReadOnlyMemory<T>> sends, IReadOnlyList<Memory<T>> receives,
            Reduction reduction = Reduction.Sum,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            ReadOnlyMemory<T>[] given = sends.ToArray();
            Memory<T>[] gotten = receives.ToArray();
            return Add(
                () => communicator.ReduceScatterList(given, gotten, reduction, options),
                given.Select(Pin).Concat(Pins(gotten)).ToArray());
        }

        /// <summary>Adds an all-gather of several buffers.</summary>
        public Batch AllGatherList<T>(
            IReadOnlyList<ReadOnlyMemory<T>> sends, IReadOnlyList<Memory<T>> receives,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            ReadOnlyMemory<T>[] given = sends.ToArray();
            Memory<T>[] gotten = receives.ToArray();
            return Add(
                () => communicator.AllGatherList(given, gotten, options),
                given.Select(Pin).Concat(Pins(gotten)).ToArray());
        }

        /// <summary>Adds a broadcast of several buffers.</summary>
        public Batch BroadcastList<T>(
            IReadOnlyList<Memory<T>> data, int root,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Memory<T>[] own = data.ToArray();
            return Add(() => communicator.BroadcastList(own, root, options), Pins(own));
        }

        /// <summary>
        /// Begins all operations and waits for them; their memory stays pinned meanwhile. If one is
        /// refused, those after it are not begun and its exception is thrown once the others are
        /// done; otherwise the first failure is.
        /// </summary>
        public void End()
        {
            calls.Run();
        }

        /// <summary>Lets go of operations that have not begun; after the end it does nothing.
        /// </summary>
        public void Dispose()
        {
            calls.Drop();
        }

        private static int[] Copy(int[] counts)
        {
            return (int[])counts?.Clone();
        }

        private static Func<MemoryHandle> Pin<T>(ReadOnlyMemory<T> memory) where T : struct
        {
            return () => memory.Pin();
        }

        private static Func<MemoryHandle>[] Pins<T>(Memory<T>[] memories) where T : struct
        {
            return memories.Select(memory => Pin<T>(memory)).ToArray();
        }

        private Batch Add(Action call, params Func<MemoryHandle>[] pins)
        {
            calls.Add(call, pins);
            return this;
        }

        /// <summary>The calls that one batch and its views share.</summary>
        private sealed class Calls
        {
            private readonly List<Action> begin = new List<Action>();
            private readonly List<Func<MemoryHandle>> pins = new List<Func<MemoryHandle>>();
            private bool over;

            public void Add(Action call, Func<MemoryHandle>[] itsPins)
            {
                CheckOpen();
                begin.Add(call);
                pins.AddRange(itsPins);
            }

            public void Drop()
            {
                over = true;
                begin.Clear();
                pins.Clear();
            }

            public void Run()
            {
                CheckOpen();
                over = true;
                var pinned = new List<MemoryHandle>(pins.Count);
                try
                {
                    foreach (Func<MemoryHandle> pin in pins)
                    {
                        pinned.Add(pin());
                    }

                    RunPinned();
                }
                finally
                {
                    foreach (MemoryHandle pin in pinned)
                    {
                        pin.Dispose();
                    }

                    Drop();
                }
            }

            private void RunPinned()
            {
                ExceptionDispatchInfo refusal = null;
                TriremeException failure = null;
                TriremeException.Check(NativeMethods.trireme_batch_begin());
                try
                {
                    foreach (Action call in begin)
                    {
                        call();
                    }
                }
                catch (Exception exception)
                {
                    refusal = ExceptionDispatchInfo.Capture(exception);
                }
                finally // nothing of the thread's later calls may land in the batch
                {
                    Status status = NativeMethods.trireme_batch_end();
                    failure = status == Status.Ok ? null : TriremeException.FromLastError(status);
                }

                refusal?.Throw();
                if (failure != null)
                {
                    throw failure;
                }
            }

            private void CheckOpen()
            {
                if (over)
                {
                    throw new ObjectDisposedException(nameof(Batch), "the batch has ended");
                }
            }
        }
    }
}
