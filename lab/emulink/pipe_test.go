package emulink

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const (
	us = int64(time.Microsecond)
	ms = int64(time.Millisecond)
)

// put offers a packet that contains its number.
func put(t interface{ Fatalf(string, ...any) }, l *pipe, now int64, size int, number uint32) {
	space := l.space()
	if space == nil {
		t.Fatalf("no space for packet %d", number)
	}
	binary.BigEndian.PutUint32(space, number)
	l.offer(now, size)
}

// arrival is a packet removed at its due time.
type arrival struct {
	number uint32
	due    int64
	lost   bool
}

// drain removes everything due by until.
func drain(l *pipe, until int64) (got []arrival) {
	for l.next() <= until && l.next() != math.MaxInt64 {
		a := arrival{due: l.next()}
		if data, fate := l.first(); fate.lost {
			a.lost = true
		} else {
			a.number = binary.BigEndian.Uint32(data)
		}
		l.pop(a.due)
		got = append(got, a)
	}
	return got
}

func TestDueTimes(t *testing.T) {
	type sent struct {
		at   int64
		size int
	}
	tests := []struct {
		name   string
		params Params
		sent   []sent
		due    []int64
	}{
		{"nothing asked", Params{}, []sent{{0, 1500}, {0, 40}, {7, 1500}}, []int64{0, 0, 7}},
		{"delay", Params{Delay: 5 * time.Millisecond}, []sent{{0, 1500}, {1 * ms, 40}}, []int64{5 * ms, 6 * ms}},
		{"rate: 1500 bytes at 10 Mbit/s take 1.2 ms", Params{Rate: 10e6},
			[]sent{{0, 1500}, {0, 1500}, {0, 750}, {10 * ms, 1500}}, []int64{1200 * us, 2400 * us, 3000 * us, 11200 * us}},
		{"both: delay comes after", Params{Rate: 10e6, Delay: 5 * time.Millisecond},
			[]sent{{0, 1500}, {1 * ms, 1500}}, []int64{6200 * us, 7400 * us}},
		{"a third of a nanosecond is carried", Params{Rate: 480e9},
			[]sent{{0, 20}, {0, 20}, {0, 20}, {0, 20}, {0, 20}, {0, 20}}, []int64{0, 0, 1, 1, 1, 2}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l := newPipe(test.params, DefaultMTU, 1, 0)
			for i, s := range test.sent {
				put(t, l, s.at, s.size, uint32(i))
			}
			got := drain(l, math.MaxInt64-1)
			if len(got) != len(test.due) {
				t.Fatalf("%d packets arrived, want %d", len(got), len(test.due))
			}
			for i, a := range got {
				if a.number != uint32(i) || a.due != test.due[i] {
					t.Errorf("arrival %d is packet %d at %d ns, want at %d ns", i, a.number, a.due, test.due[i])
				}
			}
		})
	}
}

func TestQueueDropsWhatDoesNotFit(t *testing.T) {
	l := newPipe(Params{Rate: 10e6, Queue: 4500}, DefaultMTU, 1, 0)
	for i := range uint32(5) {
		put(t, l, 0, 1500, i)
	}
	if l.stats.QueueDrops != 2 {
		t.Errorf("%d dropped, want 2 of 5 with room for 3", l.stats.QueueDrops)
	}
	put(t, l, 1200*us, 1500, 5) // the first has been sent
	put(t, l, 1200*us, 40, 6)
	if l.stats.QueueDrops != 3 {
		t.Errorf("%d dropped, want 3: there is room for one packet again", l.stats.QueueDrops)
	}
	if got := len(drain(l, math.MaxInt64-1)); got != 4 {
		t.Errorf("%d arrived, want 4", got)
	}
	// An idle pipe sends even a packet that its queue could not hold.
	l = newPipe(Params{Rate: 10e6, Queue: 100}, DefaultMTU, 1, 0)
	put(t, l, 0, 1500, 0)
	if l.stats.QueueDrops != 0 {
		t.Error("an idle pipe dropped a packet larger than its queue")
	}
}

func TestDefaultQueue(t *testing.T) {
	tests := []struct {
		rate int64
		want int
	}{{0, 48_000}, {1e6, 48_000}, {10e6, 125_000}, {1e9, 12_500_000}, {1e12, maxQueue}}
	for _, test := range tests {
		if got := DefaultQueue(test.rate); got != test.want {
			t.Errorf("DefaultQueue(%d) = %d, want %d", test.rate, got, test.want)
		}
	}
}

func TestLossIsBinomialAndRepeatable(t *testing.T) {
	const n, p = 200_000, 0.01
	lose := func(seed, number uint64) (pattern []bool, lost int) {
		l := newPipe(Params{Loss: p}, DefaultMTU, seed, number)
		for i := range uint32(n) {
			put(t, l, int64(i), 100, i)
			for _, a := range drain(l, int64(i)) {
				pattern = append(pattern, a.lost)
				if a.lost {
					lost++
				}
			}
		}
		return pattern, lost
	}
	one, lost := lose(1, 0)
	if sigmas := (float64(lost) - n*p) / math.Sqrt(n*p*(1-p)); math.Abs(sigmas) > 3 {
		t.Errorf("%d of %d lost: %.1f standard deviations from %v", lost, n, sigmas, n*p)
	}
	again, _ := lose(1, 0)
	other, _ := lose(1, 1)
	if !equal(one, again) {
		t.Error("the same seed lost other packets")
	}
	if equal(one, other) {
		t.Error("two lines lost the same packets")
	}
}

func equal(a, b []bool) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestLostPacketsUseTheLine(t *testing.T) {
	l := newPipe(Params{Rate: 10e6, Loss: 1}, DefaultMTU, 1, 0)
	put(t, l, 0, 1500, 0)
	l.set(0, Params{Rate: 10e6})
	put(t, l, 0, 1500, 1)
	got := drain(l, math.MaxInt64-1)
	if len(got) != 2 || !got[0].lost || got[1].lost || got[1].due != 2400*us {
		t.Errorf("got %+v, want the second at 2.4 ms", got)
	}
}

func TestJitterStaysInRangeAndOrder(t *testing.T) {
	const delay, jitter = 20 * ms, 5 * ms
	l := newPipe(Params{Delay: 20 * time.Millisecond, Jitter: 5 * time.Millisecond}, DefaultMTU, 1, 0)
	low, high := int64(math.MaxInt64), int64(0)
	for i := range uint32(2000) {
		now := int64(i) * 50 * ms // far apart, so that packets do not delay each other
		put(t, l, now, 100, i)
		d := drain(l, now+50*ms)[0].due - now
		low, high = min(low, d), max(high, d)
	}
	if low < delay-jitter || high > delay+jitter {
		t.Errorf("delays from %d to %d ns, beyond 15 to 25 ms", low, high)
	}
	if low > delay-jitter*9/10 || high < delay+jitter*9/10 {
		t.Errorf("delays from %d to %d ns do not use the range of 15 to 25 ms", low, high)
	}
}

func TestSetReschedulesWhatIsQueued(t *testing.T) {
	l := newPipe(Params{Rate: 10e6, Delay: 5 * time.Millisecond}, DefaultMTU, 1, 0)
	for i := range uint32(3) {
		put(t, l, 0, 1500, i)
	}
	// At 1.8 ms the first packet is propagating and the second half sent. At ten times the rate, the rest of
	// the second takes 0.06 ms, and the third 0.12 ms.
	l.set(1800*us, Params{Rate: 100e6, Delay: 6 * time.Millisecond})
	want := []int64{6200 * us, 7860 * us, 7980 * us}
	for i, a := range drain(l, math.MaxInt64-1) {
		if a.due != want[i] {
			t.Errorf("packet %d arrives at %d ns, want %d", i, a.due, want[i])
		}
	}
	// Without a rate, all queued packets leave at once, in order.
	put(t, l, 20*ms, 1500, 3)
	put(t, l, 20*ms, 1500, 4)
	l.set(20*ms, Params{})
	if got := drain(l, 20*ms); len(got) != 2 {
		t.Errorf("%d packets came at once, want 2", len(got))
	}
}

func TestDownDropsEverything(t *testing.T) {
	l := newPipe(Params{Rate: 10e6, Delay: 5 * time.Millisecond}, DefaultMTU, 1, 0)
	put(t, l, 0, 1500, 0)
	put(t, l, 0, 1500, 1)
	l.setDown(2*ms, true)
	put(t, l, 3*ms, 1500, 2)
	if l.next() != math.MaxInt64 || l.stats.DownDrops != 3 {
		t.Errorf("next %d, %d dropped; want nothing on its way and 3 dropped", l.next(), l.stats.DownDrops)
	}
	l.setDown(4*ms, false)
	put(t, l, 4*ms, 1500, 3)
	if got := drain(l, math.MaxInt64-1); len(got) != 1 || got[0].due != 10200*us {
		t.Errorf("after it came up: %+v, want packet 3 at 10.2 ms", got)
	}
}

// TestPipeInvariants offers random packets at random times and changes the parameters in between.
func TestPipeInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		params := rapid.Custom(func(t *rapid.T) Params {
			delay := rapid.Int64Range(0, 50*ms).Draw(t, "delay")
			return Params{
				Rate:   rapid.SampledFrom([]int64{0, 1e5, 1e6, 7e6, 1e8, 3e9}).Draw(t, "rate"),
				Delay:  time.Duration(delay),
				Jitter: time.Duration(rapid.Int64Range(0, delay).Draw(t, "jitter")),
				Loss:   rapid.SampledFrom([]float64{0, 0, 0.1, 1}).Draw(t, "loss"),
				Queue:  rapid.SampledFrom([]int{0, 100, 4000, 100_000}).Draw(t, "queue"),
			}
		})
		l := newPipe(params.Draw(t, "params"), DefaultMTU, 7, 0)
		content := map[uint32][]byte{}
		var now, lastDue int64
		var offered, arrived, lost uint64
		var lastNumber = -1
		deliver := func(until int64) {
			for l.next() <= until && l.next() != math.MaxInt64 {
				due := l.next()
				if due < lastDue {
					t.Fatalf("due %d after %d: time runs backwards", due, lastDue)
				}
				lastDue = due
				if data, fate := l.first(); fate.lost {
					lost++
				} else {
					number := binary.BigEndian.Uint32(data)
					if int(number) <= lastNumber {
						t.Fatalf("packet %d after %d", number, lastNumber)
					}
					if !bytes.Equal(data, content[number]) {
						t.Fatalf("packet %d was changed on the way", number)
					}
					lastNumber = int(number)
					arrived++
				}
				l.pop(max(due, now))
			}
		}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now += rapid.Int64Range(0, 3*ms).Draw(t, "gap")
			deliver(now)
			switch rapid.IntRange(0, 19).Draw(t, "action") {
			case 0:
				l.set(now, params.Draw(t, "params"))
			default:
				size := rapid.IntRange(minPacket, DefaultMTU).Draw(t, "size")
				space := l.space()
				if space == nil {
					t.Fatalf("no space, with %d bytes queued", l.queued)
				}
				number := uint32(offered)
				for i := range space[:size] {
					space[i] = byte(offered + uint64(i))
				}
				binary.BigEndian.PutUint32(space, number)
				content[number] = bytes.Clone(space[:size])
				l.offer(now, size)
				offered++
			}
			if l.queued < 0 || l.p.Rate == 0 && l.queued != 0 {
				t.Fatalf("%d bytes queued at rate %d", l.queued, l.p.Rate)
			}
		}
		deliver(math.MaxInt64 - 1)
		if offered != arrived+lost+l.stats.QueueDrops {
			t.Fatalf("%d offered, but %d arrived, %d lost, %d dropped", offered, arrived, lost, l.stats.QueueDrops)
		}
		if l.queued != 0 {
			t.Fatalf("%d bytes queued on an empty pipe", l.queued)
		}
	})
}

// TestRateIsExact keeps a pipe busy. It must send exactly what the rate allows, to the nanosecond, for any
// rate.
func TestRateIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.Int64Range(1000, 1e11).Draw(t, "rate")
		l := newPipe(Params{Rate: rate, Queue: maxQueue / 1024}, DefaultMTU, 1, 0)
		var bits int64
		var last int64
		for i := range uint32(rapid.IntRange(1, 300).Draw(t, "packets")) {
			size := rapid.IntRange(minPacket, DefaultMTU).Draw(t, "size")
			put(t, l, 0, size, i)
			bits += int64(size) * 8
		}
		for _, a := range drain(l, math.MaxInt64-1) {
			last = a.due
		}
		if want := float64(bits) / float64(rate) * 1e9; math.Abs(float64(last)-want) > 1+want*1e-12 {
			t.Fatalf("%d bits at %d bit/s took %d ns, want %.1f", bits, rate, last, want)
		}
	})
}

// A packet may be early only by a part of its delay that it has certainly behind it.
func TestSlack(t *testing.T) {
	for _, c := range []struct {
		p    Params
		want int64
	}{
		{Params{Rate: 1e9}, 0},
		{Params{Delay: 100 * time.Microsecond}, 10 * us},
		{Params{Delay: 5 * time.Millisecond}, together},
		{Params{Delay: 5 * time.Millisecond, Jitter: 5 * time.Millisecond}, 0},
		{Params{Delay: 5 * time.Millisecond, Jitter: 4500 * time.Microsecond}, 50 * us},
	} {
		l := newPipe(Params{}, DefaultMTU, 1, 1)
		l.set(0, c.p)
		if l.slack != c.want {
			t.Errorf("%+v: %d ns, want %d", c.p, l.slack, c.want)
		}
	}
}
