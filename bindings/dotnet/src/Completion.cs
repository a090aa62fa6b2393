using System;
using System.Buffers;
using System.Runtime.InteropServices;
using System.Threading.Tasks;

namespace Trireme
{
    /// <summary>
    /// Keeps what a running operation needs: its pinned memory, its communicator and its task.
    /// It is rooted from the start until the library's callback, which comes exactly once.
    /// </summary>
    internal sealed class Completion
    {
        // In a field for as long as the process lives: native code calls it at any time.
        private static readonly NativeMethods.CompletionCallback Callback = OnComplete;

        private readonly TaskCompletionSource<bool> source =
            new TaskCompletionSource<bool>(TaskCreationOptions.RunContinuationsAsynchronously);

        private readonly Communicator communicator;
        private MemoryHandle first;
        private MemoryHandle second;
        private IDisposable more;

        private Completion(Communicator communicator)
        {
            this.communicator = communicator;
        }

        /// <summary>
        /// Pins what an operation works on. Until <see cref="Begin"/> the communicator cannot be
        /// disposed, so that the start function is called in any case and nothing stays pinned.
        /// </summary>
        public static Completion Of<T>(
            Communicator communicator, ReadOnlyMemory<T> first,
            ReadOnlyMemory<T> second = default(ReadOnlyMemory<T>)) where T : struct
        {
            var completion = new Completion(communicator);
            bool held = false;
            communicator.Handle.DangerousAddRef(ref held);
            try
            {
                completion.first = first.Pin();
                completion.second = second.Pin();
                held = false;
                return completion;
            }
            finally
            {
                if (held)
                {
                    completion.Release();
                    communicator.Handle.DangerousRelease();
                }
            }
        }

        /// <summary>The same for memory that is pinned already, and disposed of here.</summary>
        public static Completion Of(Communicator communicator, IDisposable pinned)
        {
            var completion = new Completion(communicator) { more = pinned };
            bool held = false;
            try
            {
                communicator.Handle.DangerousAddRef(ref held);
                return completion;
            }
            finally
            {
                if (!held)
                {
                    pinned.Dispose();
                }
            }
        }

        /// <summary>Library elements in one C# element of a message.</summary>
        public ulong Factor { get; set; } = 1;

        /// <summary>Set while this rank takes the operation back itself.</summary>
        public volatile bool Withdrawn;

        public Task Task
        {
            get { return source.Task; }
        }

        public unsafe void* First
        {
            get { return first.Pointer; }
        }

        public unsafe void* Second
        {
            get { return second.Pointer; }
        }

        /// <summary>Goes on from what the start function answered.</summary>
        public Request Begin(Status status, RequestHandle started)
        {
            TriremeException failure =
                status == Status.Ok ? null : TriremeException.FromLastError(status);
            communicator.Handle.DangerousRelease(); // may end the communicator, so not before
            if (failure != null)
            {
                Release();
                throw failure;
            }

            started.Parent = communicator;
            GCHandle root = GCHandle.Alloc(this);
            // On failure the operation runs on, and no callback will tell its end. The root, and
            // the pins that it holds, must then stay for good.
            TriremeException.Check(NativeMethods.trireme_request_on_complete(
                started, Callback, GCHandle.ToIntPtr(root)));
            return new Request(started, this);
        }

        private static void OnComplete(Status status, IntPtr userData)
        {
            // On a thread of the library: no exception may leave.
            try
            {
                GCHandle root = GCHandle.FromIntPtr(userData);
                var completion = (Completion)root.Target;
                root.Free();
                completion.Finish(status);
            }
            catch (Exception)
            {
            }
        }

        private void Finish(Status status)
        {
            Exception failure =
                status == Status.Ok ? null : TriremeException.FromLastError(status);
            Release();
            if (failure == null)
            {
                source.TrySetResult(true);
            }
            else if (status == Status.Cancelled && Withdrawn)
            {
                source.TrySetCanceled();
            }
            else
            {
                source.TrySetException(failure);
                // Seen already where the caller waits without the task.
                GC.KeepAlive(source.Task.Exception);
            }
        }

        private void Release()
        {
            first.Dispose();
            second.Dispose();
            more?.Dispose();
        }
    }
}
