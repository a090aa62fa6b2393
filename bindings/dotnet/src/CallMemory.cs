using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;

namespace Trireme
{
    /// <summary>
    /// Native memory for the length of one call: the structs and texts that other structs point to.
    /// The library copies what it keeps.
    /// </summary>
    internal sealed class CallMemory : IDisposable
    {
        private readonly List<IntPtr> pieces = new List<IntPtr>();
        private readonly List<HeldHandle> handles = new List<HeldHandle>();

        /// <summary>A copy of a struct.</summary>
        public IntPtr Put<T>(T value) where T : struct
        {
            return Put(new[] { value });
        }

        /// <summary>Copies of structs, one behind the other; NULL if there are none.</summary>
        public IntPtr Put<T>(T[] values) where T : struct
        {
            if (values.Length == 0)
            {
                return IntPtr.Zero;
            }

            int size = Marshal.SizeOf<T>();
            IntPtr first = Take(checked(size * values.Length));
            for (int i = 0; i < values.Length; ++i)
            {
                Marshal.StructureToPtr(values[i], first + (size * i), false);
            }

            return first;
        }

        /// <summary>A number, or NULL, which means its default.</summary>
        public IntPtr Put(double? number)
        {
            return number.HasValue ? Put(number.Value) : IntPtr.Zero;
        }

        /// <summary>A C string; null is NULL.</summary>
        public IntPtr Put(string text, string parameterName)
        {
            var copy = new Utf8(text, parameterName);
            if (text != null)
            {
                pieces.Add(copy.Pointer);
            }

            return copy.Pointer;
        }

        /// <summary>A handle inside a struct. Its object lives until the call is over.</summary>
        public IntPtr Hold(NativeHandle handle)
        {
            var held = new HeldHandle(handle);
            handles.Add(held);
            return held.Address;
        }

        public void Dispose()
        {
            foreach (HeldHandle handle in handles)
            {
                handle.Dispose();
            }

            handles.Clear();
            foreach (IntPtr piece in pieces)
            {
                Marshal.FreeHGlobal(piece);
            }

            pieces.Clear();
        }

        private IntPtr Take(int bytes)
        {
            pieces.Add(IntPtr.Zero); // so that memory which is there has its place in the list
            pieces[pieces.Count - 1] = Marshal.AllocHGlobal(bytes);
            return pieces[pieces.Count - 1];
        }
    }
}
