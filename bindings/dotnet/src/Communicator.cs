using System;
using System.Text;

namespace Trireme
{
    /// <summary>
    /// A group of ranks that can communicate, as one rank sees it. All ranks call its collectives
    /// in the same order. Every method may be called from any thread, also concurrently; a call
    /// that blocks holds no lock, so <see cref="Abort"/> always gets through.
    /// </summary>
    public sealed partial class Communicator : IDisposable
    {
        private readonly CommunicatorHandle handle;

        // Whether its operations take addresses of a device.
        internal bool OnDevice { get; private set; }

        private Communicator(CommunicatorHandle handle)
        {
            this.handle = handle;
            int rank;
            int worldSize;
            TriremeException.Check(NativeMethods.trireme_communicator_get_rank(handle, out rank));
            TriremeException.Check(
                NativeMethods.trireme_communicator_get_world_size(handle, out worldSize));
            Rank = rank;
            WorldSize = worldSize;
            handle.LeaveAtExit();
        }

        /// <summary>This rank's number, from 0.</summary>
        public int Rank { get; }

        /// <summary>Number of ranks.</summary>
        public int WorldSize { get; }

        /// <summary>
        /// The backend and the transport that carry the bytes, such as "local (processes)".
        /// </summary>
        public unsafe string Backend
        {
            get { return ReadText(NativeMethods.trireme_communicator_get_backend); }
        }

        /// <summary>
        /// The last operations of this rank, oldest first, one line of JSON each.
        /// </summary>
        public unsafe string FlightRecord
        {
            get { return ReadText(NativeMethods.trireme_communicator_get_flight_record); }
        }

        /// <summary>
        /// The last calls of each rank, as far as this rank can see them: one line of JSON a rank.
        /// Works after a failure, too.
        /// </summary>
        public unsafe string LastCalls
        {
            get { return ReadText(NativeMethods.trireme_communicator_get_last_calls); }
        }

        internal CommunicatorHandle Handle
        {
            get { return handle; }
        }

        /// <summary>
        /// Claims a rank's place in a group and does not wait for the peers: the first operation
        /// or <see cref="WaitReady"/> does.
        /// </summary>
        /// <param name="rendezvous">
        /// One of these texts:
        /// <para>"local://NAME": ranks are threads of this process.</para>
        /// <para>"host://NAME": ranks are processes of this host.</para>
        /// <para>
        /// "tcp://ADDRESS:PORT": ranks lie on several hosts, and rank 0 listens there. The
        /// environment variable TRIREME_TOKEN_FILE names the job's secret (docs/several-hosts.md).
        /// </para>
        /// <para>
        /// "mpi://": all ranks of mpirun. MPI knows rank and world size, so both may be 0.
        /// </para>
        /// <para>"transport://NAME": <paramref name="transport"/> carries the bytes.</para>
        /// </param>
        /// <param name="timeout">Longest any blocking call may wait; zero is 300 seconds.</param>
        /// <param name="stallWarning">
        /// The log tells of a wait for a peer that lasts this long, and again whenever the time has
        /// doubled. Zero is 10 seconds, <see cref="TimeSpan.MaxValue"/> is never.
        /// </param>
        /// <param name="transport">
        /// Of "transport://NAME" only; the library keeps it until
        /// <see cref="Transport.Released"/>.
        /// </param>
        /// <param name="device">
        /// Number of the CUDA device whose memory the operations take, by addresses:
        /// docs/gpus.md. Null is the host.
        /// </param>
        public static Communicator Create(
            int rank, int worldSize, string rendezvous, TimeSpan timeout = default(TimeSpan),
            string name = null, string backend = null, TimeSpan stallWarning = default(TimeSpan),
            Transport transport = null, int? device = null)
        {
            if (rendezvous == null)
            {
                throw new ArgumentNullException(nameof(rendezvous));
            }

            return Join(
                rank, worldSize, rendezvous, timeout, name, backend, stallWarning, transport,
                device);
        }

        /// <summary>
        /// Joins the group that the environment describes: RANK, WORLD_SIZE and
        /// TRIREME_RENDEZVOUS, or MASTER_ADDR, MASTER_PORT and TRIREME_TOKEN.
        /// </summary>
        public static Communicator FromEnvironment(
            TimeSpan timeout = default(TimeSpan), string name = null, string backend = null,
            TimeSpan stallWarning = default(TimeSpan), int? device = null)
        {
            return Join(0, 0, "env://", timeout, name, backend, stallWarning, null, device);
        }

        /// <summary>Waits until every rank has joined.</summary>
        public void WaitReady(TimeSpan timeout)
        {
            TriremeException.Check(NativeMethods.trireme_communicator_wait_ready(
                handle, Nanoseconds.From(timeout, nameof(timeout))));
        }

        /// <summary>
        /// Makes the group fail on every rank, now; from any thread, while others are blocked.
        /// </summary>
        public void Abort(string reason = null)
        {
            using (var text = new Utf8(reason, nameof(reason)))
            {
                TriremeException.Check(
                    NativeMethods.trireme_communicator_abort(handle, text.Pointer));
            }
        }

        /// <summary>Counts of the communicator's work so far.</summary>
        public unsafe CommunicatorStatistics GetStatistics()
        {
            var native = new NativeCommunicatorStatistics
            {
                StructSize = (uint)sizeof(NativeCommunicatorStatistics),
            };
            TriremeException.Check(
                NativeMethods.trireme_communicator_get_statistics(handle, ref native));
            return new CommunicatorStatistics(native);
        }

        /// <summary>
        /// Leaves the group; peers that start an operation afterwards are told that this rank
        /// left. Waits for no peer: a call of another thread that still blocks keeps the place
        /// until it returns (<see cref="Abort"/> makes it return).
        /// </summary>
        public void Dispose()
        {
            handle.Dispose();
        }

        private static unsafe Communicator Join(
            int rank, int worldSize, string rendezvous, TimeSpan timeout, string name,
            string backend, TimeSpan stallWarning, Transport transport, int? device)
        {
            using (var rendezvousText = new Utf8(rendezvous, nameof(rendezvous)))
            using (var nameText = new Utf8(name, nameof(name)))
            using (var backendText = new Utf8(backend, nameof(backend)))
            {
                var options = new NativeCommunicatorOptions
                {
                    StructSize = (uint)sizeof(NativeCommunicatorOptions),
                    Rank = rank,
                    WorldSize = worldSize,
                    Rendezvous = rendezvousText.Pointer,
                    Name = nameText.Pointer,
                    Backend = backendText.Pointer,
                    TimeoutNs = Nanoseconds.From(timeout, nameof(timeout)),
                    StallWarningNs = Nanoseconds.From(stallWarning, nameof(stallWarning)),
                };
                if (device.HasValue)
                {
                    options.Device.Kind = (int)DeviceKind.Cuda;
                    options.Device.Index = device.Value;
                }

                NativeTransport native = default(NativeTransport);
                Transport.Kept kept = null;
                if (transport != null)
                {
                    native = Transport.Keep(transport, out kept);
                    options.Transport = (IntPtr)(&native);
                }

                CommunicatorHandle joined;
                Status status = NativeMethods.trireme_communicator_create(ref options, out joined);
                if (status != Status.Ok)
                {
                    TriremeException refusal = TriremeException.FromLastError(status);
                    if (transport != null)
                    {
                        Transport.Forget(native);
                    }

                    throw refusal;
                }

                if (kept != null)
                {
                    kept.Communicator = new WeakReference<CommunicatorHandle>(joined);
                }

                return new Communicator(joined) { OnDevice = device.HasValue };
            }
        }

        private unsafe string ReadText(TextFunction read)
        {
            // The flight record may grow between two calls; ask again until all of it fits.
            var bytes = new byte[256];
            while (true)
            {
                ulong length;
                fixed (byte* text = bytes)
                {
                    TriremeException.Check(read(handle, text, (ulong)bytes.Length, out length));
                }

                if (length < (ulong)bytes.Length)
                {
                    return Encoding.UTF8.GetString(bytes, 0, (int)length);
                }

                bytes = new byte[checked((int)length + 1024)];
            }
        }

        private unsafe delegate Status TextFunction(
            CommunicatorHandle communicator, byte* text, ulong capacity, out ulong length);
    }

    /// <summary>Counts of a communicator's work so far.</summary>
    public struct CommunicatorStatistics
    {
        internal CommunicatorStatistics(NativeCommunicatorStatistics native)
        {
            Operations = native.Operations;
            Failures = native.Failures;
            SentBytes = native.SentBytes;
            ReceivedBytes = native.ReceivedBytes;
            SentMessages = native.SentMessages;
        }

        /// <summary>Collectives and messages that ended, well or not.</summary>
        public ulong Operations { get; }

        /// <summary>Those that ended in a failure.</summary>
        public ulong Failures { get; }

        /// <summary>Bytes of this rank that peers were given to read.</summary>
        public ulong SentBytes { get; }

        /// <summary>Bytes of peers that this rank read.</summary>
        public ulong ReceivedBytes { get; }

        /// <summary>Messages that this rank sent on connections; 0 in shared memory.</summary>
        public ulong SentMessages { get; }
    }
}
