using System;
using System.Buffers;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using System.Threading;
using System.Threading.Tasks;

namespace Trireme
{
    /// <summary>
    /// One started operation. It can be awaited. Disposing or losing it does not stop the
    /// operation, whose memory stays pinned until it is done.
    /// </summary>
    public sealed class Request : IDisposable
    {
        private readonly RequestHandle handle;
        private readonly Completion completion;

        internal Request(RequestHandle handle, Completion completion)
        {
            this.handle = handle;
            this.completion = completion;
        }

        /// <summary>An eventfd that becomes readable when done; do not close it.</summary>
        public int Descriptor
        {
            get
            {
                int descriptor;
                TriremeException.Check(NativeMethods.trireme_request_fd(handle, out descriptor));
                return descriptor;
            }
        }

        /// <summary>Waits until one of several requests is done, well or not.</summary>
        /// <returns>The lowest index among those that are done; -1 if all still run.</returns>
        public static unsafe int WaitAny(TimeSpan timeout, params Request[] requests)
        {
            if (requests == null || requests.Length == 0)
            {
                throw new ArgumentException("WaitAny() needs a request.", nameof(requests));
            }

            int held = 0;
            var pointers = new IntPtr[requests.Length];
            try
            {
                foreach (Request request in requests)
                {
                    if (request == null)
                    {
                        throw new ArgumentNullException(nameof(requests));
                    }

                    bool added = false;
                    request.handle.DangerousAddRef(ref added);
                    pointers[held++] = request.handle.DangerousGetHandle();
                }

                ulong index;
                Status status;
                fixed (IntPtr* first = pointers)
                {
                    status = NativeMethods.trireme_request_wait_any(
                        first, (ulong)pointers.Length, Nanoseconds.From(timeout, nameof(timeout)),
                        out index);
                }

                if (status == Status.Timeout)
                {
                    return -1;
                }

                TriremeException.Check(status);
                return (int)index;
            }
            finally
            {
                for (int i = 0; i < held; ++i)
                {
                    requests[i].handle.DangerousRelease();
                }
            }
        }

        /// <summary>Asks whether the operation is done; throws if it failed.</summary>
        public bool Test()
        {
            int done;
            TriremeException.Check(NativeMethods.trireme_request_test(handle, out done));
            return done != 0;
        }

        /// <summary>
        /// Waits for the operation, as long as its own deadline; throws if it failed.
        /// </summary>
        public void Wait()
        {
            while (!Wait(TimeSpan.MaxValue))
            {
            }
        }

        /// <summary>Waits for the operation; throws if it failed.</summary>
        /// <returns>Whether it is done; a wait that ends early leaves it running.</returns>
        public bool Wait(TimeSpan timeout)
        {
            Status status = NativeMethods.trireme_request_wait(
                handle, Nanoseconds.From(timeout, nameof(timeout)));
            if (status == Status.Timeout)
            {
                return Test(); // throws if it is the operation itself that ran out of time
            }

            TriremeException.Check(status);
            return true;
        }

        /// <summary>Takes the operation back if it has not begun.</summary>
        /// <returns>False if it has begun or is done; it then goes on to its end.</returns>
        public bool Cancel()
        {
            completion.Withdrawn = true;
            Status status = NativeMethods.trireme_request_cancel(handle);
            if (status == Status.Ok)
            {
                return true;
            }

            completion.Withdrawn = false;
            if (status == Status.InvalidState)
            {
                return false;
            }

            throw TriremeException.FromLastError(status);
        }

        /// <summary>
        /// The operation as a task. The token tries to cancel it: an operation that has begun
        /// goes on, since the peers count on it.
        /// </summary>
        public Task AsTask(CancellationToken token = default(CancellationToken))
        {
            if (!token.CanBeCanceled)
            {
                return completion.Task;
            }

            CancellationTokenRegistration registration = token.Register(TryCancel);
            completion.Task.ContinueWith(
                done => registration.Dispose(), CancellationToken.None,
                TaskContinuationOptions.ExecuteSynchronously, TaskScheduler.Default);
            return completion.Task;
        }

        public TaskAwaiter GetAwaiter()
        {
            return completion.Task.GetAwaiter();
        }

        /// <summary>Gives the handle back and waits for nothing.</summary>
        public void Dispose()
        {
            handle.Dispose();
        }

        private void TryCancel()
        {
            try
            {
                Cancel();
            }
            catch (ObjectDisposedException)
            {
                // The caller gave the request up; the operation goes on.
            }
        }
    }

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
            communicator.Handle.DangerousRelease();
            if (status != Status.Ok)
            {
                TriremeException failure = TriremeException.FromLastError(status);
                Release();
                throw failure;
            }

            started.Parent = communicator;
            GCHandle root = GCHandle.Alloc(this);
            // On failure the operation runs and nobody will say when it ends: the root, and with
            // it the pins, must then stay for good.
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
        }
    }
}
