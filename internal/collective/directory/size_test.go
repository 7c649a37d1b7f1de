package directory

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// The cost of a directory of ten thousand members for a member: memory, time to verify a first copy and to start
// with the one on disk, and bytes on the wire.
func BenchmarkTenThousandMembers(b *testing.B) {
	const members = 10_000
	a := newAuthority(b, testCollective)
	j := NewJournal(1)
	for i := range members {
		m := a.issue(b, fmt.Sprint("member-", i), terms{subnet: fmt.Sprintf("10.%d.%d.%d/26", i>>10, i>>2&255, i&3<<6)})
		r := m.record(1, time.Now())
		r.Key = WireGuardKey{byte(i), byte(i >> 8), 1}
		if err := j.Put(uint64(i+1), m.name, m.sign(b, r)); err != nil {
			b.Fatal(err)
		}
	}
	var messages [][]byte
	wire := 0
	for ask := (Ask{}); ; {
		batch := j.Answer(ask)
		data, err := batch.Encode()
		if err != nil {
			b.Fatal(err)
		}
		messages, wire = append(messages, data), wire+len(data)
		if batch.Revision == batch.Head {
			break
		}
		ask = Ask{Epoch: 1, After: batch.Revision, Listing: batch.Listing}
	}
	one := j.Answer(Ask{Epoch: 1, After: members - 1})
	change, err := one.Encode()
	if err != nil {
		b.Fatal(err)
	}
	trust, now := a.trust(b), time.Now()
	path := filepath.Join(b.TempDir(), "directory")

	for b.Loop() {
		before := heap()
		start := time.Now()
		d := New(DefaultLimits())
		for _, data := range messages {
			batch, err := DecodeBatch(data)
			if err != nil {
				b.Fatal(err)
			}
			d.Answer(batch, trust, now)
		}
		if _, behind := d.Behind(); behind || d.Len() != members {
			b.Fatal(d.Len(), d.LastRefusal())
		}
		b.ReportMetric(float64(time.Since(start).Microseconds())/members, "µs-verify/member")
		b.ReportMetric(float64(heap()-before)/members, "B-heap/member")

		start = time.Now()
		data, err := d.Encode()
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(time.Since(start).Microseconds())/members, "µs-encode/member")
		if err := Save(path, data); err != nil {
			b.Fatal(err)
		}
		start = time.Now()
		if _, err := Load(b.Context(), path, DefaultLimits(), trust, now); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(time.Since(start).Microseconds())/members, "µs-load/member")
		start = time.Now()
		if n := len(Choose(Client{Name: "me", Want: DefaultWaypoints}, d.All(), nil, nil)); n != DefaultWaypoints {
			b.Fatal(n)
		}
		b.ReportMetric(float64(time.Since(start).Microseconds())/members, "µs-choose/member")
		start = time.Now()
		d.Recheck(trust, now)
		d.Tick(now)
		b.ReportMetric(float64(time.Since(start).Microseconds())/members, "µs-recheck/member")
		runtime.KeepAlive(d)
	}
	b.ReportMetric(float64(wire)/members, "B-wire/member")
	b.ReportMetric(float64(len(messages)), "messages")
	b.ReportMetric(float64(len(change)), "B-wire/change")
	if info, err := os.Stat(path); err == nil {
		b.ReportMetric(float64(info.Size())/members, "B-disk/member")
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// The cost of an answer for a coordinator.
func BenchmarkAnswer(b *testing.B) {
	a := newAuthority(b, testCollective)
	j := NewJournal(1)
	for i := range 200 {
		m := a.issue(b, fmt.Sprint("member-", i), terms{})
		if err := j.Put(uint64(i+1), m.name, m.signed(b, 1)); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		batch := j.Answer(Ask{})
		data, err := batch.Encode()
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(len(data)))
	}
}
