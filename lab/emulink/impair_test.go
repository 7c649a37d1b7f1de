package emulink

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// losses reports for n packets, offered one after another, whether a pipe loses them.
func losses(t *testing.T, p Params, seed, number uint64, n int) []bool {
	t.Helper()
	l := newPipe(p, DefaultMTU, seed, number)
	var pattern []bool
	for i := range uint32(n) {
		put(t, l, int64(i), 100, i)
		for _, a := range drain(l, int64(i)) {
			pattern = append(pattern, a.lost)
		}
	}
	return pattern
}

// runs returns the lengths of the sequences of losses in a pattern.
func runs(pattern []bool) (lengths []int) {
	length := 0
	for _, lost := range append(pattern, false) {
		switch {
		case lost:
			length++
		case length > 0:
			lengths = append(lengths, length)
			length = 0
		}
	}
	return lengths
}

func sum(numbers []int) (total int) {
	for _, n := range numbers {
		total += n
	}
	return total
}

// TestBurstsFollowTheModel compares the share of losses and the mean length of runs with the stationary
// values of the two-state chain.
func TestBurstsFollowTheModel(t *testing.T) {
	const n = 200_000
	tests := []struct {
		name       string
		begin      float64
		length     float64 // 0: the default
		burstLoss  float64
		alone      float64 // Params.Loss
		runs, rate float64
	}{
		{name: "all of a burst is lost", begin: 0.002, length: 8, runs: 8},
		{name: "default length", begin: 0.002, runs: DefaultBurstLength},
		{name: "bursts of one packet", begin: 0.01, length: 1, runs: 1},
		// A run ends with the burst or with a packet that gets through, so it continues with probability
		// (1-1/5)*0.5.
		{name: "half of a burst is lost", begin: 0.004, length: 5, burstLoss: 0.5, runs: 1 / (1 - 0.8*0.5)},
		{name: "losses by chance as well", begin: 0.001, length: 20, alone: 0.005},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := Params{Loss: test.alone, Impairments: Impairments{Burst: test.begin, BurstLength: test.length, BurstLoss: test.burstLoss}}
			length := p.burstLength()
			inBurst := test.begin / (test.begin + 1/length)
			want := test.alone + (1-test.alone)*inBurst*p.burstLoss()

			pattern := losses(t, p, 1, 0, n)
			lengths := runs(pattern)
			// Neighbouring packets are correlated, so the share varies more than a binomial, by about
			// 2*length.
			sigma := math.Sqrt(want * (1 - want) * 2 * length / n)
			if rate := float64(sum(lengths)) / n; math.Abs(rate-want) > 4*sigma {
				t.Errorf("lost %.5f, want %.5f, give or take %.5f", rate, want, sigma)
			}
			if test.runs == 0 {
				return
			}
			mean := float64(sum(lengths)) / float64(len(lengths))
			sigma = test.runs / math.Sqrt(float64(len(lengths)))
			if math.Abs(mean-test.runs) > 4*sigma {
				t.Errorf("%d runs of %.3f packets, want %.3f, give or take %.3f", len(lengths), mean, test.runs, sigma)
			}
		})
	}
}

// Independent losses have no such runs, so the test above would notice.
func TestLossByChanceHasShortRuns(t *testing.T) {
	lengths := runs(losses(t, Params{Loss: 0.016}, 1, 0, 200_000))
	if mean := float64(sum(lengths)) / float64(len(lengths)); mean > 1.05 {
		t.Errorf("runs of %.3f packets", mean)
	}
}

// Turning on one impairment does not change the draws of another.
func TestImpairmentsAreRepeatableAndIndependent(t *testing.T) {
	const n = 20_000
	bursts := Params{Loss: 0.01, Impairments: Impairments{Burst: 0.002, BurstLoss: 0.7}}
	one := losses(t, bursts, 1, 0, n)
	if !slices.Equal(one, losses(t, bursts, 1, 0, n)) {
		t.Error("the same seed lost other packets")
	}
	if slices.Equal(one, losses(t, bursts, 2, 0, n)) || slices.Equal(one, losses(t, bursts, 1, 1, n)) {
		t.Error("another seed, or another pipe, lost the same packets")
	}
	all := bursts
	all.Duplicate, all.Corrupt, all.Tamper = 0.3, 0.3, 0.3
	if !slices.Equal(one, losses(t, all, 1, 0, n)) {
		t.Error("with other impairments other packets were lost")
	}
	for i, lost := range losses(t, Params{Loss: 0.01}, 1, 0, n) {
		if lost && !one[i] {
			t.Fatalf("packet %d is lost by chance alone, but not with bursts", i)
		}
	}
}

// A burst ends when bursts are turned off.
func TestBurstEndsWithItsParameter(t *testing.T) {
	l := newImpairer(1, 0)
	always := Params{Impairments: Impairments{Burst: 1, BurstLength: 1e6}}
	if !l.isLost(always) {
		t.Fatal("no burst began")
	}
	if !l.isLost(always) {
		t.Fatal("the burst ended at once")
	}
	if l.isLost(Params{}) {
		t.Error("a burst goes on without bursts")
	}
	if l.inBurst {
		t.Error("it would go on with the next ones")
	}
}

func TestReorderHoldsBack(t *testing.T) {
	const n = 50_000
	l := newPipe(Params{Delay: 10 * time.Millisecond, Impairments: Impairments{Reorder: 0.02, ReorderBy: 3 * time.Millisecond}}, DefaultMTU, 1, 0)
	p := &port{pipe: l, out: -1} // writes fail, so nothing is sent
	var order []uint32
	deliver := func(until int64) {
		for l.next() <= until {
			data, f := l.first()
			if due := l.next(); !f.late {
				number := binary.BigEndian.Uint32(data)
				order = append(order, number)
				want := int64(number)*ms + 10*ms
				if due != want && due != want+3*ms {
					t.Fatalf("packet %d is due at %d", number, due)
				}
			}
			p.send(l.next(), l.next())
		}
	}
	for i := range uint32(n) {
		deliver(int64(i) * ms)
		put(t, l, int64(i)*ms, 100, i)
	}
	deliver(math.MaxInt64 - 1)
	if len(order) != n {
		t.Fatalf("%d arrived of %d", len(order), n)
	}
	overtaken := 0
	for i, number := range order[:n-4] {
		if number > order[i+1] {
			overtaken++
			// A packet is held back for three intervals. The one that is due at the same time goes first,
			// unless it was held back, too.
			if number-order[i+1] > 3 {
				t.Fatalf("packet %d comes after %d", order[i+1], number)
			}
		}
	}
	held := float64(l.stats.Reordered)
	if sigmas := (held - 0.02*n) / math.Sqrt(0.02*0.98*n); math.Abs(sigmas) > 4 {
		t.Errorf("%v held back, %.1f standard deviations from %v", held, sigmas, 0.02*n)
	}
	if float64(overtaken) < 0.9*held {
		t.Errorf("%d overtaken of %v held back", overtaken, held)
	}
}

// TestHeldPacketsArriveOnce offers packets to a pipe that reorders, changes it and takes it down in between.
func TestHeldPacketsArriveOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		params := rapid.Custom(func(t *rapid.T) Params {
			return Params{
				Rate:  rapid.SampledFrom([]int64{0, 1e6, 1e8}).Draw(t, "rate"),
				Delay: time.Duration(rapid.Int64Range(0, 5*ms).Draw(t, "delay")),
				Impairments: Impairments{
					Reorder:   rapid.SampledFrom([]float64{0, 0.3, 1}).Draw(t, "reorder"),
					ReorderBy: time.Duration(rapid.Int64Range(0, 5*ms).Draw(t, "by")),
				},
			}
		})
		l := newPipe(params.Draw(t, "params"), DefaultMTU, 3, 0)
		p := &port{pipe: l, out: -1}
		content, seen := map[uint32][]byte{}, map[uint32]bool{}
		var now, last int64
		deliver := func(until int64) {
			for l.next() <= until && l.next() != math.MaxInt64 {
				due := l.next()
				if due < last {
					t.Fatalf("due %d after %d", due, last)
				}
				last = due
				if data, f := l.first(); !f.late {
					number := binary.BigEndian.Uint32(data)
					if seen[number] || !bytes.Equal(data, content[number]) {
						t.Fatalf("packet %d came twice, or changed", number)
					}
					seen[number] = true
				}
				p.send(max(due, now), due)
			}
		}
		for i := range uint32(rapid.IntRange(1, 100).Draw(t, "steps")) {
			now += rapid.Int64Range(0, 2*ms).Draw(t, "gap")
			deliver(now)
			switch rapid.IntRange(0, 29).Draw(t, "action") {
			case 0:
				l.set(now, params.Draw(t, "params"))
			case 1:
				l.setDown(now, true)
				l.setDown(now, false)
				last = now
			default:
				size := rapid.IntRange(minPacket, DefaultMTU).Draw(t, "size")
				put(t, l, now, size, i)
				content[i] = bytes.Repeat([]byte{byte(i)}, size)
				binary.BigEndian.PutUint32(content[i], i)
				copy(l.store[l.packet(l.tail-1).at:], content[i])
			}
		}
		deliver(math.MaxInt64 - 1)
		if dropped := uint64(len(content) - len(seen)); dropped != l.stats.DownDrops+l.stats.QueueDrops {
			t.Fatalf("%d did not arrive, %d were dropped", dropped, l.stats.DownDrops+l.stats.QueueDrops)
		}
	})
}

func TestHeldIsBounded(t *testing.T) {
	l := newPipe(Params{Impairments: Impairments{Reorder: 1, ReorderBy: time.Second}}, DefaultMTU, 1, 0)
	p := &port{pipe: l, out: -1}
	for i := range uint32(maxHeld + 10) {
		put(t, l, 0, 100, i)
		p.send(0, 0)
	}
	if l.stats.Reordered != maxHeld || l.stats.WriteErrors != 10 || len(l.held.packets) != maxHeld {
		t.Errorf("%d held, %d went on; want %d and 10", l.stats.Reordered, l.stats.WriteErrors, maxHeld)
	}
	l.setDown(0, true)
	if l.next() != math.MaxInt64 || l.stats.DownDrops != maxHeld {
		t.Errorf("%d dropped by a pipe that went down, want %d", l.stats.DownDrops, maxHeld)
	}
}
