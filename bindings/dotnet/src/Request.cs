using System;
using System.Runtime.CompilerServices;
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
                TriremeException.Check(NativeMethods.trireme_request_get_fd(handle, out descriptor));
                return descriptor;
            }
        }

        /// <summary>
        /// The message that a started receive or probe has found, once it has succeeded.
        /// </summary>
        public unsafe MessageInfo Message
        {
            get
            {
                NativeMessageInfo native = MessageInfo.Empty;
                TriremeException.Check(NativeMethods.trireme_request_get_message(handle, &native));
                return new MessageInfo(native, completion.Factor);
            }
        }

        /// <summary>
        /// Waits until all of several requests are done; throws the failure of the first one that
        /// failed.
        /// </summary>
        /// <returns>Whether all are done; a wait that ends early leaves them running.</returns>
        public static unsafe bool WaitAll(TimeSpan timeout, params Request[] requests)
        {
            Status status = WithHandles(requests, pointers =>
            {
                fixed (IntPtr* first = pointers)
                {
                    return NativeMethods.trireme_request_wait_all(
                        first, (ulong)pointers.Length, Nanoseconds.From(timeout, nameof(timeout)));
                }
            });
            if (status != Status.Timeout)
            {
                TriremeException.Check(status);
                return true;
            }

            bool all = true; // or it is one of them that ran out of time, which Test() throws
            foreach (Request request in requests)
            {
                all &= request.Test();
            }

            return all;
        }

        /// <summary>Waits until one of several requests is done, well or not.</summary>
        /// <returns>The lowest index among those that are done; -1 if all still run.</returns>
        public static unsafe int WaitAny(TimeSpan timeout, params Request[] requests)
        {
            if (requests == null || requests.Length == 0)
            {
                throw new ArgumentException("WaitAny() needs a request.", nameof(requests));
            }

            ulong index = 0;
            Status status = WithHandles(requests, pointers =>
            {
                fixed (IntPtr* first = pointers)
                {
                    return NativeMethods.trireme_request_wait_any(
                        first, (ulong)pointers.Length, Nanoseconds.From(timeout, nameof(timeout)),
                        out index);
                }
            });
            if (status == Status.Timeout)
            {
                return -1;
            }

            TriremeException.Check(status);
            return (int)index;
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

        /// <summary>Calls a function with the handles of requests, held for as long.</summary>
        private static Status WithHandles(Request[] requests, Func<IntPtr[], Status> function)
        {
            if (requests == null)
            {
                throw new ArgumentNullException(nameof(requests));
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

                return function(pointers);
            }
            finally
            {
                for (int i = 0; i < held; ++i)
                {
                    requests[i].handle.DangerousRelease();
                }
            }
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
}
