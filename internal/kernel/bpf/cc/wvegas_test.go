package cc

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// The program's arithmetic and the model's are the same for any numbers.
func TestWVegasComputesAsTheModel(t *testing.T) {
	var objects arithmeticObjects
	err := loadArithmeticObjects(&objects, nil)
	if errors.Is(err, unix.EPERM) || errors.Is(err, ebpf.ErrNotSupported) {
		t.Skipf("needs root and eBPF: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer objects.Close()
	rapid.Check(t, func(t *rapid.T) {
		r := drawRound(t)
		if err := objects.RoundGiven.Set(roundBytes(r)); err != nil {
			t.Fatal(err)
		}
		if _, err := objects.ComputeRound.Run(&ebpf.RunOptions{}); err != nil {
			t.Fatal(err)
		}
		var decided int64
		got := make([]byte, len(roundBytes(r)))
		if err := errors.Join(objects.RoundDecides.Get(&decided), objects.RoundGiven.Get(got)); err != nil {
			t.Fatal(err)
		}
		want, decides := wvegas(r)
		if string(got) != string(roundBytes(want)) || decides != (decided != 0) {
			t.Errorf("of %+v the program makes %v, %v, the model %v, %v", r, got, decided, roundBytes(want), decides)
		}
	})
}

func drawRound(t *rapid.T) round {
	base := rapid.Uint64Range(1, 1<<30).Draw(t, "base")
	return round{
		window: rapid.Uint64Range(0, 1<<32).Draw(t, "window"), threshold: rapid.Uint64Range(2, 1<<31).Draw(t, "threshold"),
		rtt: rapid.OneOf(rapid.Just(base), rapid.Uint64Range(0, 1<<32), rapid.Uint64Range(base, base+1000)).Draw(t, "rtt"), base: base,
		rate: rapid.Uint64Range(0, rateLimit).Draw(t, "rate"), others: rapid.Uint64Range(0, 7*rateLimit).Draw(t, "others"),
		alpha: rapid.Uint64Range(waitingLeast, waitingTotal).Draw(t, "alpha"), queue: rapid.Uint64Range(0, 1<<20).Draw(t, "queue"),
	}
}

// roundBytes returns struct round of wvegas.h.
func roundBytes(r round) (b []byte) {
	for _, n := range []uint64{r.window, r.threshold, r.rtt, r.base, r.rate, r.others, r.alpha, r.queue} {
		b = binary.NativeEndian.AppendUint64(b, n)
	}
	return b
}

// bottleneck is a fluid model of a link without loss: what exceeds its bandwidth-delay product waits.
type bottleneck struct{ rate, base float64 } // packets a µs, µs

// rtt returns the round trip of all that send so many packets into it.
func (b bottleneck) rtt(packets uint64) uint64 {
	return uint64(max(b.base, float64(packets)/b.rate))
}

// path has the numbers of a subflow's link and connection.
type path struct{ link, connection int }

// settle lets subflows go through rounds, and returns their mean windows of the last half.
func settle(links []bottleneck, on ...path) (mean []float64) {
	const rounds = 2000
	subflows := make([]round, len(on))
	for i := range subflows {
		subflows[i] = round{window: 10, threshold: 1 << 30, base: 1 << 30, alpha: waitingLeast}
	}
	mean = make([]float64, len(on))
	for n := range rounds {
		for i := range subflows {
			s := &subflows[i]
			var sum, others uint64
			for j := range subflows {
				if on[j].link == on[i].link {
					sum += subflows[j].window
				}
				if j != i && on[j].connection == on[i].connection {
					others += subflows[j].rate
				}
			}
			s.rtt, s.others = links[on[i].link].rtt(sum)+1, others
			s.base = min(s.base, uint64(links[on[i].link].base)+1)
			next, decided := wvegas(*s)
			if !decided {
				next.window *= 2
			}
			*s = next
			if n >= rounds/2 {
				mean[i] += float64(s.window) / (rounds / 2)
			}
		}
	}
	return mean
}

// One subflow is Vegas: it keeps the link busy, with at most total_alpha packets in its queue.
func TestWVegasAlone(t *testing.T) {
	link := bottleneck{rate: 0.001, base: 40_000} // 40 packets
	if got := settle([]bottleneck{link}, path{})[0]; got < 30 || got > 51 {
		t.Errorf("its window is %g packets on the mean, of 40 that fit the link", got)
	}
}

// A connection uses disjoint links fully. Its subflows on a shared link take together about as much as another connection.
func TestWVegasCouples(t *testing.T) {
	links := []bottleneck{{rate: 0.001, base: 40_000}, {rate: 0.002, base: 40_000}}
	apart := settle(links, path{link: 0}, path{link: 1})
	if apart[0] < 30 || apart[1] < 60 || apart[0] > 51 || apart[1] > 91 {
		t.Errorf("apart the windows are %v, and 40 and 80 fit", apart)
	}
	shared := settle(links, path{link: 1}, path{link: 1}, path{link: 1, connection: 1})
	if ratio := (shared[0] + shared[1]) / shared[2]; ratio < 0.6 || ratio > 1.4 {
		t.Errorf("two subflows have %g times as much as another connection: %v", ratio, shared)
	}
}

// Above alpha the window shrinks, below it grows. A queue that became twice as long is drained.
func TestWVegasSteps(t *testing.T) {
	for _, c := range []struct {
		name             string
		given            round
		window, queue    uint64
		alpha, threshold uint64
		decides          bool
	}{
		{"slow start goes on", round{window: 10, threshold: 100, rtt: 1000, base: 1000, alpha: 512}, 10, 0, 512, 100, false},
		{"slow start ends", round{window: 20, threshold: 100, rtt: 1250, base: 1000, alpha: 512}, 17, 0, 512, 17, true},
		{"too little waits", round{window: 10, threshold: 2, rtt: 1010, base: 1000, alpha: 512}, 11, 10, 512, 2, true},
		{"too much waits", round{window: 100, threshold: 2, rtt: 1250, base: 1000, alpha: 2560, queue: 250}, 99, 250, 2560, 2, true},
		{"too much waits at the threshold", round{window: 100, threshold: 100, rtt: 1250, base: 1000, alpha: 2560, queue: 250}, 99, 250, 2560, 99, true},
		{"a queue is drained at the threshold", round{window: 10, threshold: 10, rtt: 1100, base: 1000, alpha: 512, queue: 50}, 5, 0, 512, 10, true},
		{"its share is a half", round{window: 100, threshold: 2, rtt: 1250, base: 1000, alpha: 512, others: 100 << 32 / 1250, queue: 250}, 99, 250, 1280, 2, true},
		{"others filled the queue", round{window: 10, threshold: 2, rtt: 1100, base: 1000, alpha: 512, queue: 50}, 5, 0, 512, 2, true},
		{"no measurement", round{window: 10, threshold: 2, base: 1000, alpha: 512}, 10, 0, 512, 2, false},
		{"a least round trip above the mean", round{window: 10, threshold: 2, rtt: 10, base: 1000, alpha: 512}, 10, 0, 512, 2, false},
	} {
		got, decides := wvegas(c.given)
		if got.window != c.window || got.queue != c.queue || got.alpha != c.alpha || got.threshold != c.threshold || decides != c.decides {
			t.Errorf("%s: got %+v, %v", c.name, got, decides)
		}
	}
}
