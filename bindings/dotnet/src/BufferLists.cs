using System;
using System.Buffers;
using System.Collections.Generic;

namespace Trireme
{
    /// <summary>
    /// Lists of send and receive memory, pinned, as the library wants them. Entry i has
    /// <see cref="Counts"/>[i] elements, or as many in each block.
    /// </summary>
    internal sealed class BufferLists : IDisposable
    {
        public readonly IntPtr[] Sends;
        public readonly IntPtr[] Receives;
        public readonly ulong[] Counts;
        private readonly MemoryHandle[] pins;
        private int pinned;

        private BufferLists(int length)
        {
            // One more: the address of an empty array would be null, which is no list.
            Sends = new IntPtr[length + 1];
            Receives = new IntPtr[length + 1];
            Counts = new ulong[length + 1];
            pins = new MemoryHandle[2 * length];
        }

        public ulong Length
        {
            get { return (ulong)(Counts.Length - 1); }
        }

        /// <summary>
        /// Pins both lists. A send entry has as many blocks as <paramref name="sendBlocks"/>, a
        /// receive entry as <paramref name="receiveBlocks"/>; one of both is 1.
        /// </summary>
        public static BufferLists Of<T>(
            Elements elements, ReadOnlyMemory<T>[] sends, ReadOnlyMemory<T>[] receives,
            int sendBlocks = 1, int receiveBlocks = 1) where T : struct
        {
            if (sends.Length != receives.Length)
            {
                throw new ArgumentException(
                    sends.Length + " send buffers, but " + receives.Length + " receive buffers.");
            }

            for (int i = 0; i < sends.Length; ++i)
            {
                long given = (long)sends[i].Length * receiveBlocks;
                long taken = (long)receives[i].Length * sendBlocks;
                if (given != taken)
                {
                    throw new ArgumentException(
                        "Send buffer " + i + " has " + sends[i].Length +
                        " elements and receive buffer " + i + " has " + receives[i].Length +
                        "; wanted is " + sendBlocks + " to " + receiveBlocks + ".");
                }
            }

            var lists = new BufferLists(sends.Length);
            try
            {
                for (int i = 0; i < sends.Length; ++i)
                {
                    lists.Sends[i] = lists.Pin(sends[i]);
                    lists.Receives[i] = lists.Pin(receives[i]);
                    ReadOnlyMemory<T> block = sendBlocks == 1 ? sends[i] : receives[i];
                    lists.Counts[i] = elements.Count(block.Length);
                }
            }
            catch (Exception)
            {
                lists.Dispose();
                throw;
            }

            return lists;
        }

        public static ReadOnlyMemory<T>[] Read<T>(IReadOnlyList<Memory<T>> list, string name)
        {
            return Convert<Memory<T>, T>(list, name, (i, entry) => entry);
        }

        public static ReadOnlyMemory<T>[] Read<T>(
            IReadOnlyList<ReadOnlyMemory<T>> list, string name)
        {
            return Convert<ReadOnlyMemory<T>, T>(list, name, (i, entry) => entry);
        }

        public static ReadOnlyMemory<T>[] Read<T>(T[][] list, string name)
        {
            return Convert<T[], T>(
                list, name, (i, entry) => entry ?? throw new ArgumentNullException(
                                                       name, "Entry " + i + " is null."));
        }

        public void Dispose()
        {
            while (pinned > 0)
            {
                pins[--pinned].Dispose();
            }
        }

        private static ReadOnlyMemory<T>[] Convert<TEntry, T>(
            IReadOnlyList<TEntry> list, string name, Func<int, TEntry, ReadOnlyMemory<T>> convert)
        {
            if (list == null)
            {
                throw new ArgumentNullException(name);
            }

            var result = new ReadOnlyMemory<T>[list.Count];
            for (int i = 0; i < result.Length; ++i)
            {
                result[i] = convert(i, list[i]);
            }

            return result;
        }

        private unsafe IntPtr Pin<T>(ReadOnlyMemory<T> memory)
        {
            pins[pinned] = memory.Pin();
            return (IntPtr)pins[pinned++].Pointer;
        }
    }
}
