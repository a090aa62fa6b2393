using System;

namespace Trireme
{
    /// <summary>
    /// The native library in use, and its abilities. The first call loads the file that the
    /// environment variable TRIREME_LIBRARY names, else libtrireme.so.1 as the system finds it.
    /// </summary>
    public static class Library
    {
        public static Version Version
        {
            get
            {
                uint number = NativeMethods.trireme_version();
                return new Version(
                    (int)(number / 1000000), (int)(number / 1000 % 1000), (int)(number % 1000));
            }
        }

        /// <summary>Version, compiler, backends and vector instructions in one line.</summary>
        public static string BuildInfo
        {
            get { return Utf8.Read(NativeMethods.trireme_build_info()); }
        }

        /// <summary>
        /// Asks whether a combination works; what is left out means "any".
        /// </summary>
        /// <param name="reason">Why not, in one sentence; null if it works.</param>
        public static unsafe bool Supports(
            out string reason, Operation operation = Operation.Any,
            ElementType elementType = ElementType.Automatic, Reduction reduction = 0,
            DeviceKind device = DeviceKind.Default, string backend = null)
        {
            using (var backendText = new Utf8(backend, nameof(backend)))
            {
                var query = new NativeCapabilityQuery
                {
                    StructSize = (uint)sizeof(NativeCapabilityQuery),
                    Operation = (int)operation,
                    Dtype = (int)elementType,
                    Reduction = (int)reduction,
                    Device = (int)device,
                    Backend = backendText.Pointer,
                };
                Status status = NativeMethods.trireme_capability(ref query);
                reason = null;
                if (status == Status.Unsupported)
                {
                    reason = Utf8.Read(NativeMethods.trireme_last_error());
                    return false;
                }

                TriremeException.Check(status);
                return true;
            }
        }

        /// <summary>Bytes of one element; 0 for a value that is no element type.</summary>
        public static ulong SizeOf(ElementType type)
        {
            return NativeMethods.trireme_dtype_bytes(type);
        }

        /// <summary>
        /// The library's name of a value, "unknown" for a number that means nothing.
        /// </summary>
        public static string NameOf(ElementType type)
        {
            return Utf8.Read(NativeMethods.trireme_dtype_name(type));
        }

        public static string NameOf(Reduction reduction)
        {
            return Utf8.Read(NativeMethods.trireme_reduction_name(reduction));
        }

        public static string NameOf(Algorithm algorithm)
        {
            return Utf8.Read(NativeMethods.trireme_algorithm_name(algorithm));
        }

        public static string NameOf(Status status)
        {
            return Utf8.Read(NativeMethods.trireme_status_name(status));
        }

        public static string NameOf(Strategy strategy)
        {
            return Utf8.Read(NativeMethods.trireme_strategy_name(strategy));
        }

        public static string NameOf(RuleKind kind)
        {
            return Utf8.Read(NativeMethods.trireme_rule_name(kind));
        }

        /// <summary>Finds a strategy by its name or a synonym such as "fsdp" or "ddp".</summary>
        public static Strategy ParseStrategy(string text)
        {
            Strategy strategy;
            using (var native = new Utf8(text, nameof(text)))
            {
                TriremeException.Check(
                    NativeMethods.trireme_strategy_parse(native.Pointer, out strategy));
            }

            return strategy;
        }
    }

    /// <summary>Hearing what the library has to say. It never prints.</summary>
    public static class Log
    {
        private static readonly object Gate = new object();

        // In a field for as long as the process lives: native code may call it at any time.
        private static readonly NativeMethods.LogCallback Callback = OnMessage;
        private static volatile Action<LogLevel, string> current;
        private static volatile Exception lastException;
        private static bool hooked;

        /// <summary>The last exception of a handler; no call throws it.</summary>
        public static Exception LastException
        {
            get { return lastException; }
        }

        /// <summary>
        /// Sets who hears messages up to a level, on any thread; null for silence. It must not
        /// call the library. The handler before it is not called any more when this returns.
        /// </summary>
        public static void SetHandler(
            Action<LogLevel, string> handler, LogLevel level = LogLevel.Info)
        {
            lock (Gate)
            {
                if (!hooked)
                {
                    // Threads of the library outlive managed code when the process ends.
                    AppDomain.CurrentDomain.ProcessExit += (sender, arguments) => Silence();
                    hooked = true;
                }

                if (handler == null)
                {
                    Silence();
                    return;
                }

                Action<LogLevel, string> before = current;
                current = handler;
                Status status =
                    NativeMethods.trireme_set_log_callback(Callback, level, IntPtr.Zero);
                if (status != Status.Ok)
                {
                    current = before;
                    throw TriremeException.FromLastError(status);
                }
            }
        }

        private static void Silence()
        {
            TriremeException.Check(
                NativeMethods.trireme_set_log_callback(null, LogLevel.Error, IntPtr.Zero));
            current = null;
        }

        private static void OnMessage(LogLevel level, IntPtr message, IntPtr userData)
        {
            // On a thread of the library: no exception may leave.
            try
            {
                Action<LogLevel, string> handler = current;
                if (handler != null)
                {
                    handler(level, Utf8.Read(message));
                }
            }
            catch (Exception exception)
            {
                lastException = exception;
            }
        }
    }

    /// <summary>Places where tests can make a rank die, sleep or fail.</summary>
    public static class Failpoint
    {
        /// <summary>All names in this library.</summary>
        public static string[] Names
        {
            get
            {
                var names = new string[NativeMethods.trireme_failpoint_count()];
                for (uint i = 0; i < names.Length; ++i)
                {
                    names[i] = Utf8.Read(NativeMethods.trireme_failpoint_name(i));
                }

                return names;
            }
        }

        /// <summary>"NAME=ACTION[@HIT]", several with ";" between; null or "" clears all.</summary>
        public static void Set(string text)
        {
            using (var native = new Utf8(text, nameof(text)))
            {
                TriremeException.Check(NativeMethods.trireme_failpoint_set(native.Pointer));
            }
        }

        /// <summary>How often a failpoint was visited since it was set.</summary>
        public static ulong Hits(string name)
        {
            ulong hits;
            using (var native = new Utf8(name, nameof(name)))
            {
                TriremeException.Check(
                    NativeMethods.trireme_failpoint_get_hits(native.Pointer, out hits));
            }

            return hits;
        }
    }
}
