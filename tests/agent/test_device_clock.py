"""Device spans are timed by events that are asked, never waited for."""

from hasten.agent import device_clock
from hasten.agent.device_clock import DeviceClock


class Device:
    """A device that works through its stream when told to."""

    def __init__(self):
        self.stream = []
        self.passed = {}
        self.made = 0

    def event(self):
        self.made += 1
        return FakeEvent(self)

    def work(self, seconds):
        self.stream.append(seconds)

    def run(self):
        now = max(self.passed.values(), default=0.0)
        for item in self.stream:
            if isinstance(item, float):
                now += item
            else:
                self.passed[id(item)] = now
        self.stream.clear()


class FakeEvent:
    def __init__(self, device):
        self.device = device

    def record(self):
        self.device.passed.pop(id(self), None)
        self.device.stream.append(self)

    def query(self):
        return id(self) in self.device.passed

    def elapsed_time(self, end_event):
        return 1e3 * (self.device.passed[id(end_event)] - self.device.passed[id(self)])


def span(clock, device, kind, start, seconds):
    clock.enter()
    device.work(seconds)
    clock.leave(kind, start)


def test_a_span_is_told_only_after_the_device_has_passed_it():
    device = Device()
    clock = DeviceClock(device.event)
    span(clock, device, "forward", 10.0, 0.25)
    clock.poll()
    assert clock.spans == []
    device.run()
    clock.poll()
    assert clock.spans == [("forward", 10.0, 0.25, False)]


def test_only_the_outermost_span_is_timed():
    device = Device()
    clock = DeviceClock(device.event)
    clock.enter()
    span(clock, device, "forward", 1.0, 0.5)
    clock.leave("optimizer", 0.0)
    device.run()
    clock.poll()
    assert clock.spans == [("optimizer", 0.0, 0.5, True)]


def test_events_are_used_again():
    device = Device()
    clock = DeviceClock(device.event)
    for number in range(50):
        span(clock, device, "backward", float(number), 0.1)
        device.run()
        clock.poll()
    assert len(clock.spans) == 50
    assert device.made == 2


def test_spans_beyond_the_limit_are_dropped(monkeypatch):
    monkeypatch.setattr(device_clock, "MOST_PENDING", 3)
    device = Device()
    clock = DeviceClock(device.event)
    for number in range(5):
        span(clock, device, "forward", float(number), 0.1)
    device.run()
    clock.poll()
    assert len(clock.spans) == 3


def test_an_event_of_another_device_is_replaced_by_one_of_this():
    device = Device()
    clock = DeviceClock(device.event)
    span(clock, device, "forward", 1.0, 0.5)
    device.run()
    clock.poll()

    class Foreign(FakeEvent):
        def record(self):
            raise RuntimeError("Event device does not match")

    clock._pool = [Foreign(device), Foreign(device)]
    span(clock, device, "backward", 2.0, 0.25)
    device.run()
    clock.poll()
    assert [kind for kind, *_ in clock.spans] == ["forward", "backward"]


class SilentEvent(FakeEvent):
    """Of a device that has events and tells no time by them."""

    def elapsed_time(self, end_event):
        raise NotImplementedError


def test_a_device_whose_events_tell_no_time_has_no_clock():
    device = Device()
    clock = DeviceClock(lambda: SilentEvent(device))
    span(clock, device, "forward", 10.0, 0.25)
    device.run()
    clock.poll()
    span(clock, device, "backward", 11.0, 0.25)
    assert clock.spans == [] and device.stream == [0.25]


def test_a_device_without_events_has_no_clock():
    def refuse():
        raise RuntimeError("events are not supported")

    clock = DeviceClock(refuse)
    span(clock, Device(), "forward", 10.0, 0.25)
    clock.poll()
    assert clock.spans == []


def test_a_device_that_is_done_before_it_is_asked_for_more_has_waited_for_the_host():
    device = Device()
    clock = DeviceClock(device.event)
    span(clock, device, "forward", 10.0, 0.25)
    device.run()  # the host is slower
    span(clock, device, "backward", 11.0, 0.25)
    span(clock, device, "optimizer", 12.0, 0.25)  # the device is still busy
    clock.poll()
    device.run()
    clock.poll()
    assert [(kind, waited) for kind, _, _, waited in clock.spans] == [
        ("forward", True),
        ("backward", False),
        ("optimizer", False),
    ]
