package emulink

import (
	"math"
	"testing"
	"time"
)

// A radio wakes up for a packet, is on for a while after the last, and then off after a while at less power.
func TestRadio(t *testing.T) {
	r := &radio{Radio: Radio{Wake: 2 * time.Second, Sleep: 5 * time.Second, Power: 800, Low: 400}}
	at := func(s float64) int64 { return int64(s * float64(time.Second)) }
	for _, c := range []struct {
		now, carries, joules float64
	}{
		{10, 12, 0},             // it was off
		{11, 12, 0.8},           // it wakes up
		{13, 13, 2.4},           // it is on
		{20, 20, 2.4 + 4 + 0.8}, // it was on for 5 s more, and low for 2 s
		{40, 42, 7.2 + 4 + 2},   // it went off
		{42.5, 42.5, 13.2 + 2},  // it woke up
	} {
		if got := r.joules(at(c.now)); math.Abs(got-c.joules) > 1e-9 {
			t.Errorf("at %v s: %v J, want %v", c.now, got, c.joules)
		}
		if got := r.use(at(c.now)); got != at(c.carries) {
			t.Errorf("at %v s: it carries at %v, want %v", c.now, time.Duration(got), c.carries)
		}
	}
}

// Both directions of a link wait for its radio once.
func TestRadioOfBothDirections(t *testing.T) {
	r := &radio{Radio: Radio{Wake: time.Second, Sleep: time.Second}}
	up, down := newPipe(Params{Delay: time.Millisecond}, DefaultMTU, 1, 0), newPipe(Params{Delay: time.Millisecond}, DefaultMTU, 1, 1)
	up.radio, down.radio = r, r
	for i, p := range []*pipe{up, down} {
		copy(p.space(), append([]byte{0x45, 9: 6}, make([]byte, 90)...))
		p.offer(int64(i)*int64(1500*time.Millisecond), 100)
	}
	if up.next() != int64(1001*time.Millisecond) || down.next() != int64(1501*time.Millisecond) {
		t.Errorf("the packets arrive at %v and %v", time.Duration(up.next()), time.Duration(down.next()))
	}
	for _, other := range [][]byte{nil, {0x45, 9: 17}, {0x60, 6: 58, 9: 6}, make([]byte, 9)} {
		if isTCP(other) {
			t.Errorf("%v is taken for TCP", other)
		}
	}
	if !isTCP([]byte{0x60, 6: 6, 39: 0}) {
		t.Error("TCP over IPv6 is not seen")
	}
}

// After a reset the energy counts from then on, and the radio stays as awake as it was.
func TestRadioReset(t *testing.T) {
	const second = int64(time.Second)
	r := &radio{Radio: Radio{Sleep: 5 * time.Second, Power: 800, Low: 400}}
	p := newPipe(Params{}, DefaultMTU, 1, 0)
	p.radio = r
	r.use(second)
	p.reset(3 * second)
	if got := p.snapshot(5 * second).Energy; math.Abs(got-1.6) > 1e-9 {
		t.Errorf("%v J in the two seconds after the reset, want 1.6", got)
	}
}

func TestRadioOutOfRange(t *testing.T) {
	for _, r := range []Radio{
		{Wake: -1, Sleep: 1}, {Wake: time.Hour, Sleep: 1}, {Wake: 1}, {Sleep: time.Hour}, {Sleep: 1, Power: -1}, {Sleep: 1, Low: math.NaN()}, {Sleep: 1, Power: math.Inf(1)},
	} {
		if r.Validate() == nil {
			t.Errorf("%+v is taken", r)
		}
	}
	if err := (Radio{}).Validate(); err != nil {
		t.Error(err)
	}
}
