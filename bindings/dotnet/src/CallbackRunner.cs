using System;
using System.Collections.Concurrent;
using System.Runtime.ExceptionServices;
using System.Threading;

namespace Trireme
{
    /// <summary>
    /// Runs a function of the caller for the library, and keeps what it throws. The library may
    /// keep its user_data longer than this lives, so that is a number and no pointer. Only the
    /// objects that hold this keep it alive, because a function may refer to one of them. They
    /// live in every call that may run it.
    /// </summary>
    internal abstract class CallbackRunner<T> where T : CallbackRunner<T>
    {
        private static readonly ConcurrentDictionary<long, WeakReference<T>> Runners =
            new ConcurrentDictionary<long, WeakReference<T>>();

        private static long lastNumber;

        private readonly long number;
        private ExceptionDispatchInfo thrown;

        protected CallbackRunner()
        {
            number = Interlocked.Increment(ref lastNumber);
            Runners[number] = new WeakReference<T>((T)this);
        }

        ~CallbackRunner()
        {
            WeakReference<T> removed;
            Runners.TryRemove(number, out removed);
        }

        internal IntPtr UserData
        {
            get { return new IntPtr(number); }
        }

        /// <summary>The first exception since the last call of this; null if there is none.</summary>
        internal ExceptionDispatchInfo TakeThrown()
        {
            ExceptionDispatchInfo taken = thrown;
            thrown = null;
            return taken;
        }

        /// <summary>The runner of a call; null if it has gone.</summary>
        internal static T Of(IntPtr userData)
        {
            WeakReference<T> reference;
            T runner;
            return Runners.TryGetValue(userData.ToInt64(), out reference) &&
                   reference.TryGetTarget(out runner)
                ? runner
                : null;
        }

        protected void Keep(Exception exception)
        {
            if (thrown == null)
            {
                thrown = ExceptionDispatchInfo.Capture(exception);
            }
        }
    }
}
