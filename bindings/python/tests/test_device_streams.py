"""A model on a device follows the stream that it was told."""

import unittest

import fake_device

MODEL_STREAMS = """
def body(group):
    device = group.device
    model = trireme.Model(group, "zero3", units=trireme.Units(minimum_bytes=1))
    for name in "ab": model.add_parameter(name, 4, unit=name)
    model.seal()
    optimizer = trireme.Optimizer(model, "sgd", learning_rate=1)
    stream, other = fake.fake_user_stream(device), fake.fake_user_stream(device)
    arrays = {name: Capsule(device, 4, stream) for name in "ab"}
    model.set_stream(TorchStream(stream))
    # Values by name, and gradients: their owner is asked for the model's stream, which has them late.
    for i, name in enumerate("ab"): arrays[name].put([8 * i + k for k in range(4)])
    model.broadcast_parameters(arrays if group.rank == 0 else None)
    if group.rank == 0: assert arrays["a"].asked == arrays["b"].asked == [stream]
    refused(ValueError, "has its work in stream %d" % other, model.accumulate_flat, Interface(device, 8, other))
    for i, name in enumerate("ab"):
        with model.gathered(name):
            weight = model.parameter(name)
            assert weight.__cuda_array_interface__["stream"] == stream
            assert weight.to_host().tolist() == [8 * i + k for k in range(4)]
    # A consumer in another stream finds the unit there, and reads it at once.
    found = Memory(device, 4, other)
    for i, name in enumerate("ab"):
        with model.gathered(name):
            view = trireme._dlpack.Array(model.parameter(name).__dlpack__(stream=other))
            found.address = view.address
            assert found.get() == [8 * i + k for k in range(4)]
    gradient = Capsule(device, 8, stream)
    gradient.put([1] * 8)
    model.accumulate_flat(gradient)
    assert gradient.asked == [stream]
    optimizer.step()
    # Values for a gathered unit follow what reads it in the model's stream.
    seen = array.array("f", bytes(16))
    with model.gathered("a"):
        weight = model.parameter("a")
        fake.fake_queue_read(device, stream, seen.buffer_info()[0], weight._address, 16)
        weight.copy_from(array.array("f", [9] * 4))
        assert weight.to_host().tolist() == [9] * 4 and seen.tolist() == [-1, 0, 1, 2]
    model.set_stream()
    with model.gathered("b"):
        assert model.parameter("b").__cuda_array_interface__["stream"] == 1
        assert model.parameter("b").to_host().tolist() == [7, 8, 9, 10]
    # Layers of Python do not run there.
    ran = []
    layer = trireme.Layer("l", ran.append, ran.append, parameters=["a", "b"])
    refused(trireme.UnsupportedError, "functions of C alone", trireme.Trainer, optimizer, [layer])
    assert ran == [] and optimizer.step_count == 1
    gradient.stream = None
    gradient.put([0] * 8)
    model.accumulate_flat(gradient)
    optimizer.step()

for world in (1, 2): ranks(world, body)
finish()
"""


class DeviceStreamsTest(fake_device.OverFakeDevice):
    def test_a_model_on_a_device_follows_the_stream_that_it_was_told(self):
        self.over(MODEL_STREAMS)


if __name__ == "__main__":
    unittest.main()
