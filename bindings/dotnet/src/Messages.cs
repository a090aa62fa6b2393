using System;

namespace Trireme
{
    /// <summary>The message that a receive or a probe has found.</summary>
    public struct MessageInfo
    {
        internal MessageInfo(NativeMessageInfo native, ulong factor)
        {
            Source = native.Source;
            Tag = native.Tag;
            Count = (long)(native.Count / factor);
            ElementType = (ElementType)native.Dtype;
        }

        /// <summary>Rank that sent it.</summary>
        public int Source { get; }

        /// <summary>Tag it was sent with.</summary>
        public ulong Tag { get; }

        /// <summary>
        /// Number of its elements, of the type that receives them. After a probe they are of
        /// <see cref="ElementType"/>.
        /// </summary>
        public long Count { get; }

        /// <summary>Type of the elements, as the sender named it.</summary>
        public ElementType ElementType { get; }

        internal static unsafe NativeMessageInfo Empty
        {
            get
            {
                return new NativeMessageInfo { StructSize = (uint)sizeof(NativeMessageInfo) };
            }
        }
    }

    // Messages beyond Send and Receive. OperationOptions.AnyTag leaves the tag open.
    public sealed partial class Communicator
    {
        /// <summary>In place of the rank that sends: any.</summary>
        public const int AnySource = NativeMethods.TRIREME_ANY_SOURCE;

        /// <summary>
        /// Receives at most as many elements as there is room for, and tells what came. A longer
        /// message is a mismatch.
        /// </summary>
        public unsafe MessageInfo ReceiveMessage<T>(
            Span<T> data, int from, ulong tag = 0,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            NativeOperationOptions native = options.ToNative();
            NativeMessageInfo info = MessageInfo.Empty;
            fixed (byte* output = &Elements.First<T>(data))
            {
                TriremeException.Check(NativeMethods.trireme_receive_message(
                    handle, output, elements.Count(data.Length), elements.Type, from, tag, &native,
                    &info));
            }

            return new MessageInfo(info, elements.Count(1));
        }

        /// <summary>
        /// Starts taking a message of at most as many elements as there is room for;
        /// <see cref="Request.Message"/> tells what came.
        /// </summary>
        public unsafe Request StartReceiveMessage<T>(
            Memory<T> data, int from, ulong tag = 0,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            NativeOperationOptions native = options.ToNative();
            var completion = Completion.Of<T>(this, data);
            completion.Factor = elements.Count(1);
            return completion.Begin(
                NativeMethods.trireme_receive_message_start(
                    handle, completion.First, elements.Count(data.Length), elements.Type, from, tag,
                    &native, out RequestHandle started),
                started);
        }

        /// <summary>Receives a message of any length in a new array.</summary>
        public T[] ReceiveToArray<T>(
            int from, ulong tag = 0, OperationOptions options = default(OperationOptions))
            where T : struct
        {
            return ReceiveToArray<T>(from, tag, out MessageInfo info, options);
        }

        /// <summary>Receives a message of any length in a new array, and tells whose.</summary>
        public unsafe T[] ReceiveToArray<T>(
            int from, ulong tag, out MessageInfo info,
            OperationOptions options = default(OperationOptions)) where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            NativeOperationOptions native = options.ToNative();
            NativeMessageInfo found = MessageInfo.Empty;
            BufferHandle buffer;
            TriremeException.Check(NativeMethods.trireme_receive_to_buffer(
                handle, elements.Type, from, tag, &native, &found, out buffer));
            info = new MessageInfo(found, elements.Count(1));
            return TakeArray<T>(buffer);
        }

        /// <summary>
        /// Waits until a message is there that a receive would take, and leaves it there. With a
        /// short timeout it only looks.
        /// </summary>
        public unsafe MessageInfo Probe(
            int from, ulong tag = 0, OperationOptions options = default(OperationOptions))
        {
            NativeOperationOptions native = options.ToNative();
            NativeMessageInfo info = MessageInfo.Empty;
            TriremeException.Check(
                NativeMethods.trireme_probe(handle, from, tag, &native, &info));
            return new MessageInfo(info, 1);
        }

        /// <summary>
        /// Starts waiting for a message; <see cref="Request.Message"/> tells what is there.
        /// </summary>
        public unsafe Request StartProbe(
            int from, ulong tag = 0, OperationOptions options = default(OperationOptions))
        {
            NativeOperationOptions native = options.ToNative();
            var completion = Completion.Of<byte>(this, default(ReadOnlyMemory<byte>));
            return completion.Begin(
                NativeMethods.trireme_probe_start(
                    handle, from, tag, &native, out RequestHandle started),
                started);
        }

        /// <summary>
        /// Sends to one rank and receives from one, both at once: rings of such calls need no
        /// order.
        /// </summary>
        public unsafe void SendReceive<T>(
            ReadOnlySpan<T> send, int to, ulong sendTag, Span<T> receive, int from,
            ulong receiveTag, OperationOptions options = default(OperationOptions))
            where T : struct
        {
            Elements elements = Elements.Of<T>(options.ElementType);
            NativeOperationOptions native = options.ToNative();
            fixed (byte* input = &Elements.First(send))
            fixed (byte* output = &Elements.First<T>(receive))
            {
                TriremeException.Check(NativeMethods.trireme_send_receive(
                    handle, input, elements.Count(send.Length), to, sendTag, output,
                    elements.Count(receive.Length), from, receiveTag, elements.Type, &native));
            }
        }
    }
}
