using System;
using System.Runtime.InteropServices;
using System.Text;

namespace Trireme
{
    /// <summary>A C string for the length of one call; null stays NULL.</summary>
    internal struct Utf8 : IDisposable
    {
        private IntPtr memory;

        public Utf8(string text, string parameterName)
        {
            memory = IntPtr.Zero;
            if (text == null)
            {
                return;
            }

            if (text.IndexOf('\0') >= 0)
            {
                throw new ArgumentException("The text contains a NUL character.", parameterName);
            }

            byte[] bytes = Encoding.UTF8.GetBytes(text);
            memory = Marshal.AllocHGlobal(bytes.Length + 1);
            Marshal.Copy(bytes, 0, memory, bytes.Length);
            Marshal.WriteByte(memory, bytes.Length, 0);
        }

        public IntPtr Pointer
        {
            get { return memory; }
        }

        public void Dispose()
        {
            Marshal.FreeHGlobal(memory);
            memory = IntPtr.Zero;
        }

        /// <summary>Reads a C string that belongs to the library; NULL gives null.</summary>
        public static unsafe string Read(IntPtr text)
        {
            return text == IntPtr.Zero ? null : Read((byte*)text, int.MaxValue);
        }

        public static unsafe string Read(byte* text, int capacity)
        {
            int length = 0;
            while (length < capacity && text[length] != 0)
            {
                ++length;
            }

            return length == 0 ? string.Empty : Encoding.UTF8.GetString(text, length);
        }
    }
}
