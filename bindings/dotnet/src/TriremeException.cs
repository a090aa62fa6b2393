using System;
using System.Runtime.ExceptionServices;

namespace Trireme
{
    /// <summary>A call of the native library failed. Each status has a class of its own.</summary>
    public class TriremeException : Exception
    {
        internal TriremeException(Status status, string message, Failure failure)
            : base(message, failure.Cause)
        {
            Status = status;
            BlamedRanks = failure.Blamed;
            BlamedCount = failure.BlamedCount;
            Operation = failure.Operation;
            CommunicatorName = failure.Communicator;
            Sequence = failure.Sequence;
            SystemError = failure.SystemError;
            TryAgain = failure.TryAgain;
        }

        /// <summary>The answer of the library.</summary>
        public Status Status { get; }

        /// <summary>The first 16 ranks to blame, ascending; empty if none is.</summary>
        public int[] BlamedRanks { get; }

        /// <summary>How many ranks are to blame, also those past the first 16.</summary>
        public int BlamedCount { get; }

        /// <summary>For example "all_reduce"; empty if the failure is of no operation.</summary>
        public string Operation { get; }

        /// <summary>Name of the communicator; empty if none.</summary>
        public string CommunicatorName { get; }

        /// <summary>Number of the operation in its communicator, from 1; 0 if none.</summary>
        public ulong Sequence { get; }

        /// <summary>errno, or 0.</summary>
        public int SystemError { get; }

        /// <summary>
        /// Another rank was lost in a shrink: all ranks that got this exception shrink again.
        /// </summary>
        public bool TryAgain { get; }

        /// <summary>Throws unless the status is Ok. Runs on the thread that got it.</summary>
        internal static void Check(Status status)
        {
            if (status != Status.Ok)
            {
                TriremeException failure = FromLastError(status);
                LiveCommunicators.HoldBackAtExit();
                throw failure;
            }
        }

        /// <summary>
        /// Throws for a call that has failed, in which a function of the caller may have thrown. If
        /// another rank failed for another reason, the caller's exception is the inner exception.
        /// </summary>
        internal static void ThrowFailure(Status status, ExceptionDispatchInfo thrown)
        {
            if (status == Status.Callback && thrown != null)
            {
                thrown.Throw();
            }

            TriremeException failure = FromLastError(status, thrown?.SourceException);
            LiveCommunicators.HoldBackAtExit();
            throw failure;
        }

        /// <summary>The exception for a failure this thread has just seen.</summary>
        internal static TriremeException FromLastError(Status status, Exception cause = null)
        {
            string message = Utf8.Read(NativeMethods.trireme_last_error());
            Failure failure = Failure.Last(status);
            if (failure.Status != status)
            {
                // The thread's last error is an older one: a completion that only carries a code.
                failure = Failure.None;
                message = Utf8.Read(NativeMethods.trireme_status_name(status));
            }

            failure.Cause = cause;

            switch (status)
            {
                case Status.InvalidArgument:
                    return new InvalidArgumentException(message, failure);
                case Status.InvalidHandle:
                    return new InvalidHandleException(message, failure);
                case Status.InvalidState:
                    return new InvalidStateException(message, failure);
                case Status.Unsupported:
                    return new UnsupportedException(message, failure);
                case Status.OutOfMemory:
                    return new HostMemoryException(message, failure);
                case Status.Timeout:
                    return new TriremeTimeoutException(message, failure);
                case Status.Aborted:
                    return new AbortedException(message, failure);
                case Status.PeerLost:
                    return new PeerLostException(message, failure);
                case Status.Mismatch:
                    return new MismatchException(message, failure);
                case Status.Corrupt:
                    return new CorruptException(message, failure);
                case Status.Authentication:
                    return new AuthenticationException(message, failure);
                case Status.System:
                    return new SystemErrorException(message, failure);
                case Status.Callback:
                    return new CallbackException(message, failure);
                case Status.Cancelled:
                    return new CancelledException(message, failure);
                case Status.Internal:
                    return new InternalErrorException(message, failure);
                case Status.Device:
                    return new DeviceException(message, failure);
                default:
                    return new TriremeException(status, message, failure);
            }
        }
    }

    /// <summary>A value breaks a rule; the message names both.</summary>
    public sealed class InvalidArgumentException : TriremeException
    {
        internal InvalidArgumentException(string message, Failure failure)
            : base(Status.InvalidArgument, message, failure)
        {
        }
    }

    /// <summary>Stale, foreign, destroyed twice, or used after fork.</summary>
    public sealed class InvalidHandleException : TriremeException
    {
        internal InvalidHandleException(string message, Failure failure)
            : base(Status.InvalidHandle, message, failure)
        {
        }
    }

    /// <summary>Right call, wrong moment.</summary>
    public sealed class InvalidStateException : TriremeException
    {
        internal InvalidStateException(string message, Failure failure)
            : base(Status.InvalidState, message, failure)
        {
        }
    }

    /// <summary>Known, but not in this build or backend.</summary>
    public sealed class UnsupportedException : TriremeException
    {
        internal UnsupportedException(string message, Failure failure)
            : base(Status.Unsupported, message, failure)
        {
        }
    }

    /// <summary>Host memory has run out.</summary>
    public sealed class HostMemoryException : TriremeException
    {
        internal HostMemoryException(string message, Failure failure)
            : base(Status.OutOfMemory, message, failure)
        {
        }
    }

    /// <summary>
    /// The deadline passed; <see cref="TriremeException.BlamedRanks"/> are missing.
    /// </summary>
    public sealed class TriremeTimeoutException : TriremeException
    {
        internal TriremeTimeoutException(string message, Failure failure)
            : base(Status.Timeout, message, failure)
        {
        }
    }

    /// <summary>A rank called <see cref="Communicator.Abort"/>.</summary>
    public sealed class AbortedException : TriremeException
    {
        internal AbortedException(string message, Failure failure)
            : base(Status.Aborted, message, failure)
        {
        }
    }

    /// <summary>A rank died or left; <see cref="TriremeException.BlamedRanks"/> names it.</summary>
    public sealed class PeerLostException : TriremeException
    {
        internal PeerLostException(string message, Failure failure)
            : base(Status.PeerLost, message, failure)
        {
        }
    }

    /// <summary>Ranks disagree about an operation or a model.</summary>
    public sealed class MismatchException : TriremeException
    {
        internal MismatchException(string message, Failure failure)
            : base(Status.Mismatch, message, failure)
        {
        }
    }

    /// <summary>Data read from a peer is damaged.</summary>
    public sealed class CorruptException : TriremeException
    {
        internal CorruptException(string message, Failure failure)
            : base(Status.Corrupt, message, failure)
        {
        }
    }

    /// <summary>A peer could not show that it belongs to the job.</summary>
    public sealed class AuthenticationException : TriremeException
    {
        internal AuthenticationException(string message, Failure failure)
            : base(Status.Authentication, message, failure)
        {
        }
    }

    /// <summary>The operating system refused.</summary>
    public sealed class SystemErrorException : TriremeException
    {
        internal SystemErrorException(string message, Failure failure)
            : base(Status.System, message, failure)
        {
        }
    }

    /// <summary>A callback failed, on this rank or another.</summary>
    public sealed class CallbackException : TriremeException
    {
        internal CallbackException(string message, Failure failure)
            : base(Status.Callback, message, failure)
        {
        }
    }

    /// <summary>The request, or that of a peer, was cancelled before it began.</summary>
    public sealed class CancelledException : TriremeException
    {
        internal CancelledException(string message, Failure failure)
            : base(Status.Cancelled, message, failure)
        {
        }
    }

    /// <summary>A defect of the library; please report the message.</summary>
    public sealed class InternalErrorException : TriremeException
    {
        internal InternalErrorException(string message, Failure failure)
            : base(Status.Internal, message, failure)
        {
        }
    }

    /// <summary>A device or its driver failed; the message has the driver's code.</summary>
    public sealed class DeviceException : TriremeException
    {
        internal DeviceException(string message, Failure failure)
            : base(Status.Device, message, failure)
        {
        }
    }

    /// <summary>The parts of a thread's last failure.</summary>
    internal struct Failure
    {
        public static readonly Failure None = new Failure
        {
            Blamed = new int[0], Operation = string.Empty, Communicator = string.Empty,
        };

        public Status Status;
        public int[] Blamed;
        public int BlamedCount;
        public string Operation;
        public string Communicator;
        public ulong Sequence;
        public int SystemError;
        public bool TryAgain;
        public Exception Cause;

        public static unsafe Failure Last(Status status)
        {
            var info = new NativeErrorInfo { StructSize = (uint)sizeof(NativeErrorInfo) };
            if (NativeMethods.trireme_last_error_info(ref info) != Status.Ok)
            {
                Failure none = None;
                none.Status = status;
                return none;
            }

            int listed = (int)Math.Min(info.BlamedCount, (uint)NativeMethods.TRIREME_MAX_BLAMED_RANKS);
            var blamed = new int[listed];
            for (int i = 0; i < listed; ++i)
            {
                blamed[i] = info.Blamed[i];
            }

            return new Failure
            {
                Status = (Status)info.Code,
                Blamed = blamed,
                BlamedCount = (int)info.BlamedCount,
                Operation = Utf8.Read(info.Operation, 32),
                Communicator = Utf8.Read(info.Communicator, 64),
                Sequence = info.Sequence,
                SystemError = info.SystemError,
                TryAgain = info.TryAgain != 0,
            };
        }
    }
}
