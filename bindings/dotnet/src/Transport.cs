using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Runtime.InteropServices;
using System.Threading;

namespace Trireme
{
    /// <summary>
    /// Carries the frames between the ranks of one "transport://NAME" group, such as the program's
    /// network layer. It delivers every frame whole and once, and frames from one rank to another
    /// in the order in which they were sent.
    /// <para>
    /// One thread of the library calls <see cref="Send"/> and another one calls
    /// <see cref="Receive"/>; neither may use the group. If one of them throws, the group ends with
    /// a <see cref="CallbackException"/> on all ranks. <see cref="Failure"/> keeps the exception.
    /// </para>
    /// </summary>
    public abstract class Transport
    {
        // In fields for as long as the process lives: native code calls them at any time.
        private static readonly NativeMethods.TransportSendCallback SendCallback = OnSend;
        private static readonly unsafe NativeMethods.TransportReceiveCallback ReceiveCallback =
            OnReceive;
        private static readonly NativeMethods.TransportReleasedCallback ReleasedCallback =
            OnReleased;

        // How long the end of the process waits for frames that are on their way.
        private static readonly TimeSpan LastTime = TimeSpan.FromSeconds(6);
        private static readonly List<Kept> All = new List<Kept>();

        private Exception failure;

        static Transport()
        {
            AppDomain.CurrentDomain.ProcessExit += OnExit;
        }

        /// <summary>Longest frame in bytes, at least 1,024; 0 is 65,536.</summary>
        public virtual int FrameBytes
        {
            get { return 0; }
        }

        /// <summary>The first exception that left one of the methods; null if none did.</summary>
        public Exception Failure
        {
            get { return Volatile.Read(ref failure); }
        }

        /// <summary>
        /// Takes a frame for a rank. False if it cannot within the time, also because the peer is
        /// not there yet; the library then offers the frame again.
        /// </summary>
        public abstract bool Send(int to, ReadOnlySpan<byte> frame, TimeSpan timeout);

        /// <summary>
        /// Writes the next frame of any rank; false if none comes within the time.
        /// </summary>
        /// <param name="frame">Room for <see cref="FrameBytes"/> bytes.</param>
        /// <param name="timeout">How long it may wait.</param>
        /// <param name="from">The rank that sent the frame.</param>
        /// <param name="bytes">The length of the frame.</param>
        public abstract bool Receive(
            Span<byte> frame, TimeSpan timeout, out int from, out int bytes);

        /// <summary>
        /// Says that the library will not call this transport again: some seconds after the
        /// communicator has been disposed at most, and never while a method does not return.
        /// </summary>
        public virtual void Released()
        {
        }

        /// <summary>
        /// The struct of a transport, which is kept alive until the library has released it; or
        /// until <see cref="Forget"/>, if the library has not taken it.
        /// </summary>
        internal static unsafe NativeTransport Keep(Transport transport, out Kept kept)
        {
            int frameBytes = transport.FrameBytes;
            if (frameBytes < 0)
            {
                throw new ArgumentOutOfRangeException(nameof(FrameBytes), "is negative");
            }

            kept = new Kept { Transport = transport };
            lock (All)
            {
                All.Add(kept);
            }

            return new NativeTransport
            {
                StructSize = (uint)sizeof(NativeTransport),
                UserData = GCHandle.ToIntPtr(GCHandle.Alloc(kept)),
                MaximumFrameBytes = (ulong)frameBytes,
                Send = Marshal.GetFunctionPointerForDelegate(SendCallback),
                Receive = Marshal.GetFunctionPointerForDelegate(ReceiveCallback),
                Released = Marshal.GetFunctionPointerForDelegate(ReleasedCallback),
            };
        }

        internal static void Forget(NativeTransport native)
        {
            GCHandle root = GCHandle.FromIntPtr(native.UserData);
            var kept = (Kept)root.Target;
            root.Free();
            Remove(kept);
        }

        private static void Remove(Kept kept)
        {
            lock (All)
            {
                All.Remove(kept);
                Monitor.PulseAll(All);
            }
        }

        /// <summary>Threads of the library must not call into a runtime that is gone.</summary>
        private static void OnExit(object sender, EventArgs arguments)
        {
            Kept[] open;
            lock (All)
            {
                open = All.ToArray();
            }

            foreach (Kept kept in open)
            {
                CommunicatorHandle handle;
                if (kept.Communicator != null && kept.Communicator.TryGetTarget(out handle))
                {
                    handle.Dispose();
                }
            }

            Stopwatch since = Stopwatch.StartNew();
            lock (All)
            {
                while (All.Count > 0 && since.Elapsed < LastTime)
                {
                    Monitor.Wait(All, TimeSpan.FromMilliseconds(50));
                }
            }
        }

        private static TimeSpan Time(ulong nanoseconds)
        {
            return TimeSpan.FromTicks((long)(nanoseconds / 100));
        }

        // On threads of the library: no exception may leave.
        private static unsafe Status OnSend(
            IntPtr userData, int to, IntPtr data, ulong bytes, ulong timeoutNs)
        {
            Transport transport = null;
            try
            {
                transport = Of(userData);
                var frame = new ReadOnlySpan<byte>((void*)data, checked((int)bytes));
                bool taken = transport.Send(to, frame, Time(timeoutNs));
                return taken ? Status.Ok : Status.Timeout;
            }
            catch (Exception exception)
            {
                return Fail(transport, exception);
            }
        }

        private static unsafe Status OnReceive(
            IntPtr userData, int* outFrom, IntPtr data, ulong capacity, ulong* outBytes,
            ulong timeoutNs)
        {
            Transport transport = null;
            try
            {
                transport = Of(userData);
                var frame = new Span<byte>((void*)data, checked((int)capacity));
                int from;
                int bytes;
                if (!transport.Receive(frame, Time(timeoutNs), out from, out bytes))
                {
                    return Status.Timeout;
                }

                // Whatever it says: the library looks at both.
                *outFrom = from;
                *outBytes = bytes < 0 ? ulong.MaxValue : (ulong)bytes;
                return Status.Ok;
            }
            catch (Exception exception)
            {
                return Fail(transport, exception);
            }
        }

        private static void OnReleased(IntPtr userData)
        {
            Kept kept = null;
            try
            {
                kept = (Kept)GCHandle.FromIntPtr(userData).Target;
                kept.Transport.Released();
            }
            catch (Exception exception)
            {
                Fail(kept?.Transport, exception);
            }

            try
            {
                GCHandle.FromIntPtr(userData).Free();
                Remove(kept);
            }
            catch (Exception)
            {
            }
        }

        private static Transport Of(IntPtr userData)
        {
            return ((Kept)GCHandle.FromIntPtr(userData).Target).Transport;
        }

        private static Status Fail(Transport transport, Exception exception)
        {
            if (transport != null)
            {
                Interlocked.CompareExchange(ref transport.failure, exception, null);
            }

            return Status.Callback;
        }

        /// <summary>One transport that the library may call, and whose it is.</summary>
        internal sealed class Kept
        {
            public Transport Transport { get; set; }

            public WeakReference<CommunicatorHandle> Communicator { get; set; }
        }
    }
}
