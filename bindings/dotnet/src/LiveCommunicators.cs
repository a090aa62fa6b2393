using System;
using System.Collections.Generic;
using System.Threading;

namespace Trireme
{
    /// <summary>
    /// The communicators that the program has not disposed, without those that a mesh or a model
    /// owns. When the process ends they leave their groups: Mono waits at its end for background
    /// threads, also for those inside a call of this library. An idle communicator leaves in order.
    /// If calls are under way, they fail, and so do those of the peers. Nothing here ends a call on
    /// a communicator of a mesh's axis, or of a model.
    /// </summary>
    internal static class LiveCommunicators
    {
        private const int NoThread = -1;

        // Longer than the rest of the program takes. A caller that joins the thread gets it back.
        private static readonly TimeSpan LongestHold = TimeSpan.FromSeconds(5);
        private static readonly HashSet<IntPtr> All = new HashSet<IntPtr>();
        private static volatile int endingThread = NoThread;

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

        /// <summary>
        /// For a thread whose call has failed, perhaps because the program ends. Then no code
        /// handles its exception, and the exception would change the exit code of the program.
        /// </summary>
        internal static void HoldBackAtExit()
        {
            int ending = endingThread;
            if (ending != NoThread && ending != Thread.CurrentThread.ManagedThreadId)
            {
                Thread.Sleep(LongestHold);
            }
        }

        private static void OnExit(object sender, EventArgs arguments)
        {
            endingThread = Thread.CurrentThread.ManagedThreadId;
            var left = new List<IntPtr>();
            lock (All)
            {
                left.AddRange(All);
            }

            foreach (IntPtr communicator in left)
            {
                // The handle's finalizer, which may still run, does this again: it finds no
                // communicator behind the token then, and does nothing.
                NativeMethods.trireme_communicator_destroy(communicator);
            }
        }
    }
}
