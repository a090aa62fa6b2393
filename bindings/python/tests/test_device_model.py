"""Models on a device, over the driver of the tests."""

import unittest

from fake_device import OverFakeDevice

# A model on a device: its oracle is the same training on the host, bit for bit.
MODELS = """
SHAPES = {"w": (3, 5), "b": (7,), "scalar": (), "none": (0,)}

def numbers(count, seed):
    return array.array("f", [((i * 7919 + seed * 104729) % 2003 - 1001) / 371 for i in range(count)])

def count_of(name):
    count = 1
    for extent in SHAPES[name]: count *= extent
    return count

def bits(memory):
    memory = memory.to_host() if hasattr(memory, "to_host") else memory
    return memoryview(memory).cast("B").tobytes() if memoryview(memory).nbytes else b""

class Training:
    def __init__(self, group):
        self.group = group
        self.model = trireme.Model(group, "zero1", leaves=4, gradients="sum")
        for name, shape in SHAPES.items():
            self.model.add_parameter(name, shape, unit="all")
        self.model.seal()
        self.optimizer = trireme.Optimizer(self.model, "adamw", learning_rate=0.01, clipping=trireme.Clipping(max_norm=1.0))

    def operand(self, values, flags=0):
        if self.group.device is None:
            return values
        memory = (Interface if len(values) % 2 else Capsule)(self.group.device, len(values), None)
        memory.put(values)
        return memory

    def step(self, number, flat):
        model = self.model
        for micro_batch in range(model.info().micro_batches):
            leaf = model.leaf(micro_batch)
            if leaf is None: continue
            seed = 100 * number + leaf
            if flat:
                total = sum(count_of(name) for name in SHAPES)
                model.accumulate_flat(self.operand(numbers(total, seed)))
                continue
            with model.backward():
                for which, name in enumerate(SHAPES):
                    assert self.group.device is None or model.gradient(name) is None
                    model.gradient_ready(name, self.operand(numbers(count_of(name), seed + which)))
        self.optimizer.step()

def whole(training):
    "All parameters, by each way."
    model = training.model
    flat, named = model.get_parameters(), model.gather_parameters()
    out = training.operand(numbers(model.info().elements, 1))
    assert model.get_parameters(out) is out
    found = bits(flat)
    assert found == b"".join(bits(named[name]) for name in SHAPES)
    assert found == b"".join(bits(model.parameter(name)) for name in SHAPES)
    if training.group.device is not None:
        assert out.get() == trireme._device_memory.cast(memoryview(found), "f").tolist()
    return found

def train(group):
    first = Training(group)
    values = numbers(first.model.info().elements, 5)
    root = group.world_size - 1
    first.model.set_parameters(first.operand(values) if group.rank == root else None, root)
    for number in range(3): first.step(number, number == 1)
    found = [whole(first)]
    saved = bytes(first.optimizer.save())
    first.step(3, False)
    found.append(whole(first))
    again = Training(group)
    again.optimizer.load(saved)
    assert whole(again) == found[0]
    again.step(3, False)
    assert whole(again) == found[1]
    again.model.check_replicas()
    named = {name: again.operand(numbers(count_of(name), 9)) for name in SHAPES}
    again.model.broadcast_parameters(named if group.rank == 0 else None)
    found.append(whole(again))
    named = {name: numbers(count_of(name), 9) for name in SHAPES}  # of the host
    again.model.broadcast_parameters(named if group.rank == 0 else None)
    assert whole(again) == found[2] == b"".join(bits(numbers(count_of(name), 9)) for name in SHAPES)
    return found, saved

results = {}
def run_on(world, device):
    def main(rank):
        with trireme.Communicator(rank, world, "local://models-%d-%s" % (world, device),
                                  device=rank % 2 if device else None) as group:
            results[world, device, rank] = train(group)
            group.barrier()
    threads = [threading.Thread(target=main, args=(r,)) for r in range(world)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()

for world in (1, 2):
    for device in (False, True): run_on(world, device)
    for rank in range(world): assert results[world, True, rank] == results[world, False, rank]
assert results[2, True, 0][0] == results[1, False, 0][0]  # leaves: for any number of ranks
gc.collect()
finish()
assert fake.fake_retained_count(0) == 0 and fake.fake_retained_count(1) == 0
"""

MODEL_REFUSALS = """
def body(group):
    bad = trireme.InvalidArgumentError
    stream = fake.fake_user_stream(group.device)
    model = trireme.Model(group, "zero1")
    model.add_parameter("w", 2)
    half = model.add_parameter("h", 2, "bf16", unit="h")
    model.seal()
    optimizer = trireme.Optimizer(model, "sgd", learning_rate=0.5)
    model.begin_backward()
    here = array.array("f", [1, 2])
    refused(bad, "memory of the host", model.gradient_ready, "w", here)
    refused(bad, "CUDA device %d" % (1 - group.device), model.gradient_ready, "w", Interface(1 - group.device, 2, None))
    refused(ValueError, "has its work in stream %d" % stream, model.gradient_ready, "w", Interface(group.device, 2, stream))
    refused(bad, "shape", model.gradient_ready, "w", Capsule(group.device, 4, None, shape=(2, 2)))
    refused(TypeError, "buffer protocol", model.gradient_ready, "w", object())
    good = Capsule(group.device, 2, stream)
    good.stream = None
    good.put([1, 2])
    model.gradient_ready("w", good)
    assert good.asked == [1]  # the owner lets the default stream wait for its own
    model.gradient_ready("h", good)
    model.end_backward()
    optimizer.step()
    weight = model.parameter("w")
    assert weight.shape == (2,) and weight.to_host().tolist() == [-0.5, -1]
    assert model.parameter(half).to_host().tolist() == [0xbf00, 0xbf80]
    weight.copy_from(array.array("f", [8, 9]))
    assert model.parameter("w").to_host().tolist() == [8, 9]
    weight.copy_from(good)
    assert weight.to_host().tolist() == [1, 2]
    model.parameter("h").copy_from(array.array("H", [1, 2]))
    refused(ValueError, "elements", weight.copy_from, array.array("f", [1]))
    refused(TypeError, "f64", weight.copy_from, array.array("d", [1, 2]))
    refused(TypeError, "buffer protocol", weight.copy_from, object())
    refused(trireme.UnsupportedError, "", trireme.Model, group, "zero1", update_in_backward=True)
    never = lambda call: 1 / 0
    layer = trireme.Layer("l", never, never, output=1, parameters=["w", "h"])
    refused(trireme.UnsupportedError, "functions of C alone", trireme.Trainer, optimizer, [layer])
    for text in "the value", "there is no value", "no parameter":
        named = {"w": good, "h": array.array("H", [1, 2])}
        if text == "the value": named["w"] = array.array("d", [1, 2])
        if text == "there is no value": del named["h"]
        if text == "no parameter": named["x"] = good
        refused(ValueError, text, model.broadcast_parameters, named)
    for state in optimizer.ranges(): assert len(state.data) == 0
    # A parameter keeps its memory, whatever else ends.
    info = trireme.memory_info(weight._address)
    assert info.kind == "device"
    view = trireme._dlpack.Array(weight.__dlpack__())
    address = weight._address
    model.close(); optimizer.close()
    refused(trireme.InvalidHandleError, "closed", model.parameter, "w")
    del model, optimizer
    gc.collect()
    assert weight.to_host().tolist() == [1, 2]
    del weight
    gc.collect()
    assert trireme.memory_info(address).kind == "device" and view.address == address
    del view
    gc.collect()
    assert trireme.memory_info(address).kind == "host"

ranks(1, body)
finish()
"""

# A stream of the caller's own. The driver runs work as late as it may, so a call that follows
# another stream finds what was there before.
OWN_STREAM = """
import weakref

class Owned(Memory):
    "The owner's work waits in a stream of its own, and the consumer's stream waits for it."

    def __init__(self, device, numbers):
        super().__init__(device, len(numbers), fake.fake_user_stream(device))
        self.numbers = numbers

    def __dlpack_device__(self):
        return (2, self.device)

    def __dlpack__(self, *, stream=None, **options):
        self.put(self.numbers, stream)  # good in that stream alone, as torch makes it
        return trireme._dlpack.capsule_of(
            self.address, (self.count,), trireme._native.TRIREME_DTYPE_F32, (2, self.device), self,
            options.get("max_version"))

def numbers(seed):
    return [float(seed * 100 + i) for i in range(6)]

def read(device, address, stream):
    data = array.array("f", bytes(24))
    fake.fake_queue_read(device, stream, data.buffer_info()[0], address, 24)
    fake.fake_synchronize(device, stream)
    return data.tolist()

def body(group):
    device = group.device
    stream, other = fake.fake_user_stream(device), fake.fake_user_stream(device)
    model = trireme.Model(group, "zero3")
    for name in "abc": model.add_parameter(name, 6, unit=name)
    model.seal()
    for named, seed in (stream, 1), (None, 5):
        model.set_stream(None if named is None else TorchStream(named))
        for way in range(2):  # new values each time, or a unit would still lie where it was
            # By name: the values of the device are good in the model's stream alone.
            values = {name: Owned(device, numbers(seed + way + i)) for i, name in enumerate("abc")}
            model.broadcast_parameters(values if group.rank == 0 else None)
            for name, whole in model.gather_parameters().items():
                assert whole.to_host().tolist() == values[name].numbers, whole.to_host().tolist()
            # A gathered unit is there in the model's stream alone.
            for name in "abcabc":
                with model.gathered(name):
                    weight = model.parameter(name)
                    if way == 0:
                        found = weight.to_host().tolist()
                    else:
                        interface = weight.__cuda_array_interface__
                        assert interface["stream"] == (named or 1), interface
                        view = trireme._dlpack.Array(weight.__dlpack__(stream=other))
                        found = read(device, view.address, other)
                        del view
                    assert found == values[name].numbers, (way, found)
        # Who takes it in the model's stream does not wait, and nor does who asks for no wait.
        with model.gathered("a"):
            weight = model.parameter("a")
            if named: fake.fake_hold(named, 1)
            taken = [weight.__dlpack__(stream=one) for one in (named or 1, named or None, -1)]
            if named: fake.fake_hold(named, 0)
            assert weight.to_host().tolist() == values["a"].numbers
            del taken
        # Values follow what the model's stream still does with the parameter.
        with model.gathered("b"):
            weight = model.parameter("b")
            before = array.array("f", bytes(24))
            fake.fake_queue_read(device, named, before.buffer_info()[0], weight._address, 24)
            weight.copy_from(Owned(device, numbers(9)))
            assert before.tolist() == values["b"].numbers, before.tolist()
            assert read(device, weight._address, named) == numbers(9)
    # The object of a stream lives as long as memory of the model, and no longer.
    kept = TorchStream(stream)
    there = weakref.ref(kept)
    model.set_stream(kept)
    optimizer = trireme.Optimizer(model, "sgd")
    with model.gathered("a"):
        view = trireme._dlpack.Array(model.parameter("a").__dlpack__(stream=stream))
    model.close()
    del kept, model, weight
    gc.collect()
    assert there() is not None  # for the optimizer
    optimizer.close()
    del optimizer
    gc.collect()
    assert there() is not None  # for the array
    del view
    gc.collect()
    assert there() is None

for world in (1, 2): ranks(world, body)
gc.collect()
finish()
"""


class DeviceModelTest(OverFakeDevice):
    def test_a_model_on_a_device_has_the_bits_of_the_host(self):
        for script in ("mode=lazy", "mode=seeded:7"):
            self.over(MODELS, script)

    def test_a_model_follows_a_stream_of_the_callers_own(self):
        self.over(OWN_STREAM)

    def test_a_model_on_a_device_refuses_other_memory_and_keeps_its_own(self):
        self.over(MODEL_REFUSALS)


if __name__ == "__main__":
    unittest.main()
