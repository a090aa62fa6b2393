using System;
using System.Text;

namespace Trireme
{
    /// <summary>
    /// The job's small key-value store: keys and values that all of its processes share. Needs the
    /// job's token, by TRIREME_TOKEN_FILE, TRIREME_TOKEN_FD or TRIREME_TOKEN. Every method may be
    /// called from any thread, also concurrently; one that waits keeps no other waiting.
    /// </summary>
    public sealed class Store : IDisposable
    {
        // Most values fit, so that one call gets them.
        private const int FirstRoom = 4096;

        private readonly StoreHandle handle;

        private Store(StoreHandle handle)
        {
            this.handle = handle;
        }

        private delegate Status Open(
            IntPtr url, ref NativeStoreOptions options, out StoreHandle opened);

        /// <summary>Serves a store from this process until it is disposed.</summary>
        /// <param name="url">
        /// "tcp://ADDRESS:PORT"; null for a port of the loopback that the system chooses.
        /// </param>
        /// <param name="timeout">Longest any call may take; zero for 300 s.</param>
        public static Store Serve(string url = null, TimeSpan timeout = default(TimeSpan))
        {
            return OpenStore(NativeMethods.trireme_store_serve, url, timeout);
        }

        /// <summary>Connects to a store and waits until it is there.</summary>
        /// <param name="url">
        /// "tcp://ADDRESS:PORT", "file:///PATH", or null for "env://". The last one takes the place
        /// from TRIREME_STORE, or else from MASTER_ADDR and MASTER_PORT.
        /// </param>
        /// <param name="timeout">Longest any call may take; zero for 300 s.</param>
        public static Store Connect(string url = null, TimeSpan timeout = default(TimeSpan))
        {
            return OpenStore(NativeMethods.trireme_store_connect, url, timeout);
        }

        /// <summary>The URL by which others connect.</summary>
        public unsafe string Address
        {
            get
            {
                ulong length;
                TriremeException.Check(
                    NativeMethods.trireme_store_get_address(handle, null, 0, out length));
                var text = new byte[length + 1];
                fixed (byte* memory = text)
                {
                    TriremeException.Check(NativeMethods.trireme_store_get_address(
                        handle, memory, (ulong)text.Length, out length));
                    return Utf8.Read(memory, text.Length);
                }
            }
        }

        /// <summary>Puts a value under a key, in place of the one before.</summary>
        public unsafe void Set(string key, byte[] value)
        {
            Require(value, nameof(value));
            using (Utf8 text = Key(key))
            fixed (byte* data = value)
            {
                TriremeException.Check(NativeMethods.trireme_store_set(
                    handle, text.Pointer, data, (ulong)value.Length));
            }
        }

        /// <summary>The same with text, as UTF-8.</summary>
        public void Set(string key, string value)
        {
            Require(value, nameof(value));
            Set(key, Encoding.UTF8.GetBytes(value));
        }

        /// <summary>
        /// The value of a key, or null if it has none. Does not wait for the key.
        /// </summary>
        public unsafe byte[] Get(string key)
        {
            using (Utf8 text = Key(key))
            {
                var value = new byte[FirstRoom];
                while (true)
                {
                    ulong size;
                    int found;
                    fixed (byte* data = value)
                    {
                        TriremeException.Check(NativeMethods.trireme_store_get(
                            handle, text.Pointer, data, (ulong)value.Length, out size,
                            out found));
                    }

                    if (found == 0)
                    {
                        return null;
                    }

                    bool fits = size <= (ulong)value.Length;
                    Array.Resize(ref value, (int)size);
                    if (fits)
                    {
                        return value;
                    }
                }
            }
        }

        /// <summary>Waits until all of these keys have a value.</summary>
        /// <param name="timeout">Longest wait; zero looks once.</param>
        public unsafe void Wait(TimeSpan timeout, params string[] keys)
        {
            ulong limit = Nanoseconds.From(timeout, nameof(timeout));
            using (var texts = new Texts(keys, nameof(keys)))
            fixed (IntPtr* pointers = texts.Pointers)
            {
                TriremeException.Check(NativeMethods.trireme_store_wait(
                    handle, pointers, (ulong)texts.Pointers.Length, limit));
            }
        }

        /// <summary>
        /// Adds to the number under a key, which is 0 if there is none, and gives the sum.
        /// </summary>
        public long Add(string key, long amount = 1)
        {
            using (Utf8 text = Key(key))
            {
                long sum;
                TriremeException.Check(
                    NativeMethods.trireme_store_add(handle, text.Pointer, amount, out sum));
                return sum;
            }
        }

        /// <summary>
        /// Puts a value under a key if what is there is what is expected; tells whether it did.
        /// </summary>
        /// <param name="expected">Null: the key must have no value.</param>
        public unsafe bool CompareExchange(string key, byte[] expected, byte[] value)
        {
            Require(value, nameof(value));
            byte nothing = 0;
            using (Utf8 text = Key(key))
            fixed (byte* old = expected)
            fixed (byte* data = value)
            {
                // An empty array has no address, but is not the same as none.
                byte* present = expected != null && expected.Length == 0 ? &nothing : old;
                int exchanged;
                TriremeException.Check(NativeMethods.trireme_store_compare_exchange(
                    handle, text.Pointer, present, (ulong)(expected == null ? 0 : expected.Length),
                    data, (ulong)value.Length, out exchanged));
                return exchanged != 0;
            }
        }

        /// <summary>Takes a key and its value away; tells whether it had one.</summary>
        public bool Delete(string key)
        {
            using (Utf8 text = Key(key))
            {
                int deleted;
                TriremeException.Check(
                    NativeMethods.trireme_store_delete(handle, text.Pointer, out deleted));
                return deleted != 0;
            }
        }

        /// <summary>Leaves the store; one that is served from here is gone for all.</summary>
        public void Dispose()
        {
            handle.Dispose();
        }

        private static Store OpenStore(Open open, string url, TimeSpan timeout)
        {
            var options = new NativeStoreOptions
            {
                TimeoutNs = Nanoseconds.From(timeout, nameof(timeout)),
            };
            unsafe
            {
                options.StructSize = (uint)sizeof(NativeStoreOptions);
            }

            using (var text = new Utf8(url, nameof(url)))
            {
                StoreHandle opened;
                TriremeException.Check(open(text.Pointer, ref options, out opened));
                return new Store(opened);
            }
        }

        private static void Require(object value, string name)
        {
            if (value == null)
            {
                throw new ArgumentNullException(name);
            }
        }

        private static Utf8 Key(string key)
        {
            Require(key, nameof(key));
            return new Utf8(key, nameof(key));
        }
    }
}
