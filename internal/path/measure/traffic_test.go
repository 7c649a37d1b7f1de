package measure_test

import (
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// pattern is traffic that repeats: data arrives or is acknowledged at a rate from one moment of each period to
// another, and this host sends data at its beginning.
type pattern struct {
	name     string
	trip     time.Duration
	every    time.Duration // zero: always
	from, to time.Duration // of each period, in which data moves
	rate     float64       // bit/s meanwhile
	asks     bool          // this host sends data as each period begins
	sends    bool          // the data is this host's
	limited  bool          // the network limits what it sends
	lossy    bool
	queued   bool
	want     measure.Kind
}

const ms = time.Millisecond

// moment returns what a sample at now shows of the time since before.
func (p *pattern) moment(before, now time.Duration) (m measure.Moment) {
	m = measure.Moment{Elapsed: now - before, Trip: p.trip, Asked: time.Hour, Heard: time.Hour, Limited: p.limited, Lossy: p.lossy, Queued: p.queued, SurelyQueued: p.queued}
	bytes := 0.0
	for at := before; at <= now; at += ms {
		in := at
		if p.every > 0 {
			in = at % p.every
		}
		if moves := p.every == 0 || in >= p.from && in < p.to; moves {
			bytes += p.rate / 8 * ms.Seconds()
		}
	}
	since := now
	if p.every > 0 {
		since = now % p.every
	}
	switch {
	case p.every == 0, since >= p.from && since < p.to:
		m.Heard = ms
	case since >= p.to:
		m.Heard = since - p.to
	case now >= p.every:
		m.Heard = since + p.every - p.to
	}
	if p.asks {
		m.Asked = since
	}
	if p.sends {
		m.Acked, m.Asked, m.Heard = uint64(bytes), m.Heard, time.Hour
	} else {
		m.Received = uint64(bytes)
	}
	m.Flight = bytes / max(1, m.Elapsed.Seconds()/p.trip.Seconds())
	return m
}

func TestKindOfTraffic(t *testing.T) {
	for _, p := range []pattern{
		{name: "download", trip: 40 * ms, rate: 10e6, want: measure.Bulk},
		{name: "slow download", trip: 20 * ms, rate: 8e6, want: measure.Bulk},
		{name: "download over a lossy path", trip: 40 * ms, rate: 1.5e6, lossy: true, want: measure.Bulk},
		{name: "download over a slow path with a queue", trip: 40 * ms, rate: 500e3, queued: true, want: measure.Bulk},
		{name: "download, a window in each long round trip", trip: 200 * ms, every: 200 * ms, from: 0, to: 40 * ms, rate: 20e6, want: measure.Bulk},
		{name: "upload", trip: 40 * ms, rate: 10e6, sends: true, limited: true, want: measure.Bulk},
		{name: "a stream of 500 kbit/s", trip: 40 * ms, rate: 500e3, want: measure.Messages},
		{name: "requests of 1 KB, one after the other", trip: 40 * ms, every: 42 * ms, from: 40 * ms, to: 42 * ms, rate: 8e6, asks: true, want: measure.Messages},
		{name: "requests of 100 KB, one after the other", trip: 40 * ms, every: 120 * ms, from: 40 * ms, to: 120 * ms, rate: 10e6, asks: true, want: measure.Messages},
		{name: "requests of 100 KB, four a second", trip: 40 * ms, every: 250 * ms, from: 40 * ms, to: 120 * ms, rate: 10e6, asks: true, want: measure.Messages},
		{name: "requests of 100 KB, four a second, held up", trip: 40 * ms, every: 250 * ms, from: 40 * ms, to: 220 * ms, rate: 4.4e6, asks: true, want: measure.Messages},
		{name: "requests of 10 MB", trip: 40 * ms, every: 8 * time.Second, from: 40 * ms, to: 8 * time.Second, rate: 10e6, asks: true, want: measure.Bulk},
		{name: "reports", trip: 40 * ms, every: 100 * ms, from: 0, to: 10 * ms, rate: 1e6, sends: true, want: measure.Messages},
	} {
		t.Run(p.name, func(t *testing.T) {
			var traffic measure.Traffic
			at, found := time.Duration(0), time.Duration(0)
			for i := range 300 {
				before := at
				at += 100*ms + time.Duration(i%7)*ms
				kind := traffic.Take(beginning.Add(at), p.moment(before, at))
				switch {
				case kind == p.want && found == 0:
					found = at
				case kind != p.want && kind != measure.Short:
					t.Fatalf("%v after %v, want %v", kind, at, p.want)
				}
			}
			if found == 0 || found > 4*time.Second {
				t.Errorf("found out after %v", found)
			}
		})
	}
}

// Traffic that begins as messages is recognised early. For other traffic, that is wrong for a moment at most.
func TestBeginsAsMessages(t *testing.T) {
	stream := pattern{trip: 40 * ms, rate: 500e3}
	sent := pattern{trip: 40 * ms, rate: 500e3, sends: true}
	bulk := pattern{trip: 40 * ms, rate: 10e6}
	upload := pattern{trip: 40 * ms, rate: 500e3, sends: true, limited: true}
	slow := pattern{trip: 40 * ms, rate: 500e3, queued: true}
	lossy := pattern{trip: 40 * ms, rate: 500e3, lossy: true}
	thinks := pattern{trip: 40 * ms, every: time.Minute, from: time.Second, to: 2 * time.Second, rate: 10e6, asks: true}
	for _, c := range []struct {
		name  string
		parts []*pattern // of 700 ms each
		want  []bool     // at their ends
	}{
		{"a stream", []*pattern{&stream}, []bool{true}},
		{"a stream that this host sends", []*pattern{&sent}, []bool{true}},
		{"a download", []*pattern{&bulk}, []bool{false}},
		{"an upload", []*pattern{&upload}, []bool{false}},
		{"a download over a slow path", []*pattern{&slow}, []bool{false}},
		{"a download over a lossy path", []*pattern{&lossy}, []bool{false}},
		{"a server that thinks first", []*pattern{&thinks}, []bool{false}},
		{"a download after a small beginning", []*pattern{&stream, &bulk, &stream}, []bool{true, false, false}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var traffic measure.Traffic
			at := time.Duration(0)
			for i, p := range c.parts {
				for range 7 {
					at += 100 * ms
					traffic.Take(beginning.Add(at), p.moment(at-100*ms, at))
				}
				if got := traffic.BeginsAsMessages(); got != c.want[i] {
					t.Errorf("part %d: %v", i+1, got)
				}
			}
		})
	}
}

// A lost packet, or a pause that looks like a queue, does not make a stream another kind of traffic. Queues and losses in
// most samples do.
func TestBeginningWithQueuesAndLosses(t *testing.T) {
	for each, want := range map[int]bool{1: false, 2: false, 3: true, 5: true} {
		var traffic measure.Traffic
		for i := range 12 {
			p := pattern{trip: 40 * ms, rate: 500e3, queued: i%each == 0 && i%2 == 0, lossy: i%each == 0 && i%2 == 1}
			at := time.Duration(i) * 100 * ms
			traffic.Take(beginning.Add(at), p.moment(at, at+100*ms))
		}
		if got := traffic.BeginsAsMessages(); got != want {
			t.Errorf("one sample in %d with a sign: %v", each, got)
		}
	}
}

// A pause does not change the kind. Other traffic does after some seconds.
func TestKindChanges(t *testing.T) {
	var traffic measure.Traffic
	at := time.Duration(0)
	run := func(p *pattern, long time.Duration) (kind measure.Kind) {
		for end := at + long; at < end; {
			at += 100 * ms
			m := measure.Moment{Elapsed: 100 * ms, Trip: 40 * ms, Asked: time.Hour, Heard: time.Hour}
			if p != nil {
				m = p.moment(at-100*ms, at)
			}
			kind = traffic.Take(beginning.Add(at), m)
		}
		return kind
	}
	bulk := pattern{trip: 40 * ms, rate: 10e6}
	messages := pattern{trip: 40 * ms, every: 200 * ms, from: 40 * ms, to: 42 * ms, rate: 8e6, asks: true}
	for i, c := range []struct {
		p    *pattern
		long time.Duration
		want measure.Kind
	}{
		{&bulk, 5 * time.Second, measure.Bulk},
		{nil, 20 * time.Second, measure.Bulk},
		{&messages, time.Second, measure.Bulk},
		{&messages, 9 * time.Second, measure.Messages},
		{nil, 20 * time.Second, measure.Messages},
		{&bulk, 8 * time.Second, measure.Bulk},
	} {
		if kind := run(c.p, c.long); kind != c.want {
			t.Errorf("step %d: %v, want %v", i, kind, c.want)
		}
	}
}
