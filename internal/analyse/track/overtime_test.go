package track

import (
	"math"
	"testing"
)

// The mean of each part of time is kept, however long the subflow lives.
func TestOverTime(t *testing.T) {
	for name, length := range map[string]int64{"a second": second, "an hour": 3600 * second, "a hundred years": 3_000_000_000 * second} {
		const samples = 1000
		o := newOverTime(second)
		sum := 0.0
		for i := range int64(samples) {
			rtt := 10 * millisecond
			if i >= samples/2 {
				rtt = 30 * millisecond
			}
			sum += seconds(rtt)
			o.add(second+i*(length/samples), rtt)
		}
		list := o.record(second).Periods()
		if len(list) < periods/2-1 || len(list) > periods {
			t.Errorf("%s: %d parts", name, len(list))
			continue
		}
		got, n := 0.0, uint32(0)
		for i, p := range list {
			if i > 0 && math.Abs(p.From-list[i-1].To) > 1e-6*p.To {
				t.Errorf("%s: a part begins at %v, and the one before ends at %v", name, p.From, list[i-1].To)
			}
			got += p.Mean * float64(p.Samples)
			n += p.Samples
		}
		if n != samples || math.Abs(got-sum) > sum/1e4 {
			t.Errorf("%s: %d samples of together %v s, want %d of %v s", name, n, got, samples, sum)
		}
		if first, last := list[0], list[len(list)-1]; first.From != 0 || math.Abs(first.Mean-0.01) > 1e-6 || math.Abs(last.Mean-0.03) > 1e-6 || last.To < seconds(length)*0.99 {
			t.Errorf("%s: first %+v, last %+v", name, first, last)
		}
	}
}

// A packet that the capture has late belongs to the first part.
func TestOverTimeBackwards(t *testing.T) {
	o := newOverTime(5 * second)
	o.add(5*second, millisecond)
	o.add(4*second, 3*millisecond)
	if list := o.record(5 * second).Periods(); len(list) != 1 || list[0].Samples != 2 || math.Abs(list[0].Mean-0.002) > 1e-9 {
		t.Errorf("%+v", list)
	}
}

// Without samples there is nothing to report.
func TestOverTimeOfNothing(t *testing.T) {
	if r := (*overTime)(nil).record(0); r != nil || r.Periods() != nil {
		t.Errorf("%+v", r)
	}
}
