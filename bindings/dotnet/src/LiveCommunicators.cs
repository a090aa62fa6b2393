using System;
using System.Collections.Generic;

namespace Trireme
{
    /// <summary>
    /// The communicators that nobody has disposed. When the process ends they are aborted: Mono
    /// waits at its end for background threads, also for those inside a call of this library.
    /// </summary>
    internal static class LiveCommunicators
    {
        private static readonly HashSet<IntPtr> All = new HashSet<IntPtr>();

        static LiveCommunicators()
        {
            AppDomain.CurrentDomain.ProcessExit += OnExit;
        }

        internal static void Add(IntPtr communicator)
        {
            lock (All)
            {
                All.Add(communicator);
            }
        }

        internal static void Remove(IntPtr communicator)
        {
            lock (All)
            {
                All.Remove(communicator);
            }
        }

        private static void OnExit(object sender, EventArgs arguments)
        {
            var left = new List<IntPtr>();
            lock (All)
            {
                left.AddRange(All);
            }

            foreach (IntPtr communicator in left)
            {
                // One that was released meanwhile is refused, which is as good.
                using (var borrowed = new CommunicatorHandle(communicator, null))
                {
                    NativeMethods.trireme_communicator_abort(borrowed, IntPtr.Zero);
                }
            }
        }
    }
}
