package cc

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// packets returns an increment in packets.
func packets[N int64 | uint64](n N) float64 { return float64(n) / (1 << one) }

// The papers' equations in floating point are the oracle of the model.
func TestModelFollowsTheEquations(t *testing.T) {
	near := func(t *testing.T, what string, got, want float64) {
		t.Helper()
		if diff := got - want; diff > 0.01*want+1e-6 || -diff > 0.01*want+1e-6 {
			t.Errorf("%s: got %g, want %g", what, got, want)
		}
	}
	for _, c := range []struct {
		name string
		own  int
		all  []subflow
	}{
		{"alone", 0, []subflow{{window: 10, rtt: 100}}},
		{"two alike", 0, []subflow{{window: 10, rtt: 100}, {window: 10, rtt: 100}}},
		{"the slower", 1, []subflow{{window: 20, rtt: 100, loss: 1 << 20}, {window: 10, rtt: 300}}},
		{"the quicker", 0, []subflow{{window: 20, rtt: 100, loss: 1 << 20}, {window: 10, rtt: 300}}},
		{"large windows", 1, []subflow{{window: 20000, rtt: 8000, loss: 1 << 20}, {window: 1000, rtt: 40000}, {window: 400, rtt: 10000}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			own := c.all[c.own]
			w, r := float64(own.window), float64(own.rtt)
			var sum, best, fastest float64
			for _, s := range c.all {
				x := float64(s.window) / float64(s.rtt)
				sum, best, fastest = sum+x, max(best, x/float64(s.rtt)), max(fastest, x)
			}
			alpha := fastest / (w / r)
			near(t, "LIA", packets(lia(own, c.all)), min(best/(sum*sum), 1/w))
			near(t, "OLIA whose widest path is the best", packets(olia(own, c.all)), w/r/r/(sum*sum))
			near(t, "BALIA", packets(balia(own, c.all)), min(w/r/r/(sum*sum)*(1+alpha)/2*(4+alpha)/5, 1/w))
			near(t, "BALIA's decrease", float64(baliaDecrease(own, c.all)), float64(int(w/2*min(alpha, 1.5))))
		})
	}
}

// A path that could carry more than its window does gets what the paths with the largest windows give.
func TestOLIAMovesWindows(t *testing.T) {
	good, wide := subflow{window: 5, rtt: 100, loss: 1000}, subflow{window: 20, rtt: 100, loss: 100}
	all := []subflow{good, wide}
	base := 1 / 25. / 25
	if got := packets(olia(good, all)); got < 5*base+1/(5.*2)-1e-3 || got > 5*base+1/(5.*2)+1e-3 {
		t.Errorf("the good path grows by %g", got)
	}
	if got := packets(olia(wide, all)); got < 20*base-1/(20.*2)-1e-3 || got > 20*base-1/(20.*2)+1e-3 {
		t.Errorf("the wide path grows by %g", got)
	}
}

// RFC 6356's goals: alone as Reno, and never more aggressive than Reno on any path.
func TestNeverMoreThanReno(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := drawSubflows(t)
		own := all[rapid.IntRange(0, len(all)-1).Draw(t, "own")]
		limit := renoIncrement(own.window)
		if got := lia(own, all); got > limit {
			t.Errorf("LIA grows by %d, Reno by %d", got, limit)
		}
		if got := balia(own, all); got > limit {
			t.Errorf("BALIA grows by %d, Reno by %d", got, limit)
		}
		if down := baliaDecrease(own, all); down > own.window*3/4 {
			t.Errorf("BALIA gives up %d of %d packets", down, own.window)
		}
	})
}

func drawSubflows(t *rapid.T) []subflow {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) subflow {
		return subflow{
			window: rapid.Uint64Range(1, 1<<20).Draw(t, "window"),
			rtt:    rapid.Uint64Range(8, 1<<27).Draw(t, "rtt"),
			loss:   rapid.Uint64Range(0, 1<<40).Draw(t, "loss"),
		}
	}), 1, subflows).Draw(t, "subflows")
}

// subflows is as many as the programs look at.
const subflows = 8

// The programs' arithmetic and the model's are the same for any numbers.
func TestProgramsComputeAsTheModel(t *testing.T) {
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
		all := drawSubflows(t)
		own := all[rapid.IntRange(0, len(all)-1).Draw(t, "own")]
		if err := objects.Given.Set(given(own, all)); err != nil {
			t.Fatal(err)
		}
		if _, err := objects.Compute.Run(&ebpf.RunOptions{}); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			name string
			of   *ebpf.Variable
			want int64
		}{
			{"LIA", objects.LiaGives, int64(lia(own, all))},
			{"OLIA", objects.OliaGives, olia(own, all)},
			{"BALIA", objects.BaliaGives, int64(balia(own, all))},
			{"BALIA's decrease", objects.BaliaTakes, int64(baliaDecrease(own, all))},
		} {
			var got int64
			if err := c.of.Get(&got); err != nil {
				t.Fatal(err)
			}
			if got != c.want {
				t.Errorf("%s: the program says %d, the model %d", c.name, got, c.want)
			}
		}
	})
}

// given returns struct subflows of arithmetic.h.
func given(own subflow, all []subflow) []byte {
	padded := append(append([]subflow(nil), all...), make([]subflow, subflows-len(all))...)
	var b []byte
	for _, field := range []func(subflow) uint64{
		func(s subflow) uint64 { return s.window },
		func(s subflow) uint64 { return s.rtt },
		func(s subflow) uint64 { return s.loss },
	} {
		for _, s := range padded {
			b = binary.NativeEndian.AppendUint64(b, field(s))
		}
	}
	for _, n := range []uint64{own.window, own.rtt, own.loss} {
		b = binary.NativeEndian.AppendUint64(b, n)
	}
	return b
}
