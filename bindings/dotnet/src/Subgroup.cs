using System;
using System.Collections.Generic;

namespace Trireme
{
    // Groups made of ranks of this group. A child is an ordinary communicator that fails when its
    // parent does, not the other way round. All ranks of the parent call these.
    public sealed partial class Communicator
    {
        /// <summary>
        /// Each rank's number in the group that this one descends from.
        /// </summary>
        public unsafe int[] Ranks
        {
            get
            {
                var ranks = new int[WorldSize];
                fixed (int* numbers = ranks)
                {
                    TriremeException.Check(NativeMethods.trireme_communicator_get_original_ranks(
                        handle, numbers, (ulong)ranks.Length));
                }

                return ranks;
            }
        }

        /// <summary>
        /// Ranks of one color become a new group, in the order of their keys and then of ranks.
        /// </summary>
        /// <param name="color">0 or more; null if this rank shall be in no group.</param>
        /// <param name="key">Orders the ranks of the new group.</param>
        /// <param name="name">Name of the new group in messages.</param>
        /// <param name="timeout">Longest this call may wait; zero is the parent's.</param>
        /// <returns>The new group; null without a color.</returns>
        public Communicator Split(
            int? color, int key = 0, string name = null, TimeSpan timeout = default(TimeSpan))
        {
            if (color < 0)
            {
                throw new ArgumentOutOfRangeException(
                    nameof(color), color, "A color is 0 or more; null is no group.");
            }

            return OnSameDevice(MakeChild(
                name, timeout,
                (ref NativeChildOptions options, out CommunicatorHandle child) =>
                    NativeMethods.trireme_communicator_split(
                        handle, color ?? -1, key, ref options, out child)));
        }

        /// <summary>
        /// The ranks of a list, the same on all ranks, become a new group in its order.
        /// </summary>
        /// <returns>The new group; null on ranks that are not in the list.</returns>
        public unsafe Communicator Subgroup(
            IReadOnlyList<int> ranks, string name = null, TimeSpan timeout = default(TimeSpan))
        {
            if (ranks == null)
            {
                throw new ArgumentNullException(nameof(ranks));
            }

            var list = new int[ranks.Count];
            for (int i = 0; i < list.Length; ++i)
            {
                list[i] = ranks[i];
            }

            return OnSameDevice(MakeChild(
                name, timeout,
                (ref NativeChildOptions options, out CommunicatorHandle child) =>
                {
                    fixed (int* numbers = list)
                    {
                        return NativeMethods.trireme_communicator_subgroup(
                            handle, numbers, (ulong)list.Length, ref options, out child);
                    }
                }));
        }

        /// <summary>A second group of the same ranks, for another part of the program.</summary>
        public Communicator Duplicate(string name = null, TimeSpan timeout = default(TimeSpan))
        {
            return OnSameDevice(MakeChild(
                name, timeout,
                (ref NativeChildOptions options, out CommunicatorHandle child) =>
                    NativeMethods.trireme_communicator_duplicate(handle, ref options, out child)));
        }

        /// <summary>
        /// The bitwise and of the flags of all ranks that are there, the same on each of them. Also
        /// works after a failure; goes on without ranks that died, left, or are blamed by it.
        /// </summary>
        public ulong Agree(ulong flags, TimeSpan timeout = default(TimeSpan))
        {
            TriremeException.Check(NativeMethods.trireme_communicator_agree(
                handle, ref flags, Nanoseconds.From(timeout, nameof(timeout))));
            return flags;
        }

        /// <summary>
        /// A new group of the ranks that are there; also works after a failure. After a
        /// <see cref="PeerLostException"/> it may be called again.
        /// </summary>
        public Communicator Shrink(string name = null, TimeSpan timeout = default(TimeSpan))
        {
            return OnSameDevice(MakeChild(
                name, timeout,
                (ref NativeChildOptions options, out CommunicatorHandle child) =>
                    NativeMethods.trireme_communicator_shrink(handle, ref options, out child)));
        }

        // A child works on the device of its parent.
        private Communicator OnSameDevice(Communicator child)
        {
            if (child != null)
            {
                child.OnDevice = OnDevice;
            }

            return child;
        }

        // The communicator of a handle; null for one that is NULL.
        internal static Communicator Adopt(CommunicatorHandle child)
        {
            if (child == null || child.IsInvalid)
            {
                return null;
            }

            return new Communicator(child);
        }

        internal static unsafe Communicator MakeChild(
            string name, TimeSpan timeout, ChildFunction make)
        {
            using (var nameText = new Utf8(name, nameof(name)))
            {
                var options = new NativeChildOptions
                {
                    StructSize = (uint)sizeof(NativeChildOptions),
                    Name = nameText.Pointer,
                    TimeoutNs = Nanoseconds.From(timeout, nameof(timeout)),
                };
                CommunicatorHandle child;
                TriremeException.Check(make(ref options, out child));
                return Adopt(child);
            }
        }

        internal delegate Status ChildFunction(
            ref NativeChildOptions options, out CommunicatorHandle child);
    }
}
