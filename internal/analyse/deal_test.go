package analyse

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/analyse/analysetest"
	"github.com/detour-collective/dcol/internal/analyse/capture"
	"github.com/detour-collective/dcol/internal/analyse/track"
	"github.com/detour-collective/dcol/internal/packet"
)

// dealt returns the dealer of a capture with one worker, once all packets are dealt.
func dealt(t *testing.T, list []analysetest.Frame, o track.Options) (*dealer, *track.Tracker) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trace.pcap")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w, err := analysetest.NewPcap(f, 128)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range list {
		if err := w.Write(one); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := capture.Open([]string{path})
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	d, tracker, ended := newDealer(1), track.New(o), make(chan struct{})
	go func() { work(d.workers[0], tracker); close(ended) }()
	for p := files.Next(); p != nil; p = files.Next() {
		d.deal(p)
	}
	d.workers[0].flush(d.clock.activity)
	close(d.workers[0].full)
	<-ended
	return d, tracker
}

// However many keys a flow, a join or a connection that ended shows, it takes no more memory.
func TestKeysTakeNoMemory(t *testing.T) {
	s := analysetest.New(70)
	s.Gap = time.Millisecond
	phone, web := netip.MustParseAddrPort("192.0.2.1:40001"), netip.MustParseAddrPort("203.0.113.5:443")
	others := s.Conn(1).Open(netip.MustParseAddrPort("192.0.2.9:40001"), web)
	for i := range 8 {
		c := s.Conn(1)
		a := c.Open(netip.AddrPortFrom(phone.Addr(), uint16(41000+i)), web)
		b := c.Join(analysetest.Client, netip.AddrPortFrom(phone.Addr(), uint16(42000+i)), web, 2)
		for key := range packet.Key(500) {
			for _, f := range []*analysetest.Subflow{a, b} {
				f.Options(analysetest.Client, packet.Capable{Version: 1, Keys: 2, Sender: key + 1, Receiver: key + 1000})
			}
		}
		c.Close(a, b)
	}
	for range 4000 {
		others.Send(analysetest.Server, 100)
		others.Ack(analysetest.Client)
	}
	d, _ := dealt(t, s.Frames, track.Options{Idle: int64(time.Hour), Connections: 100, Done: func(*track.Record) {}})
	if len(d.tokens) != 2 {
		t.Errorf("%d tokens are known, of one connection that is alive", len(d.tokens))
	}
}

// Joins of one connection do not take memory without bounds.
func TestJoinsWithoutEnd(t *testing.T) {
	s := analysetest.New(71)
	c := s.Conn(1)
	a := c.Open(netip.MustParseAddrPort("192.0.2.1:40001"), netip.MustParseAddrPort("203.0.113.5:443"))
	join := packet.JoinSYN{Token: c.Keys[analysetest.Server].Token(1)}.Option()
	for i := range 20_000 {
		f := c.Subflow(netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}), 40000), a.Ends[analysetest.Server])
		f.Segment(analysetest.Client, packet.SYN, f.Seq[analysetest.Client], 0, join)
	}
	most := 0
	d, tracker := dealt(t, s.Frames, track.Options{Idle: int64(time.Hour), Connections: 100, Done: func(r *track.Record) { most = max(most, len(r.Subflows)) }})
	if tracker.Evicted == 0 || most > 8*100+batchSize || d.flows.used > 10_000 {
		t.Errorf("%d connections were ended early; one had %d subflows; %d flows are known", tracker.Evicted, most, d.flows.used)
	}
}

// Flows that ended are remembered for a while, and not without bounds.
func TestGraves(t *testing.T) {
	table, g := newFlowTable(), graves{}
	bury := func(i uint64, now int64) {
		key := flowKey{low: address{0, i}, high: address{1, 1}}
		table.insert(flow{key: key})
		g.bury(table.find(&key), now)
		g.open(&table, now)
	}
	for i := range uint64(3 * mostGraves) {
		bury(i, 1)
	}
	if table.used != mostGraves {
		t.Errorf("%d graves, of at most %d", table.used, mostGraves)
	}
	if cap(g.list) > 8*mostGraves {
		t.Errorf("the list has room for %d graves", cap(g.list))
	}
	bury(1<<40, 10+graveTime)
	if table.used != 1 {
		t.Errorf("%d graves after their time", table.used)
	}
	// One that was opened early, whose flow ended again, stays for its time.
	key := flowKey{low: address{0, 1 << 40}, high: address{1, 1}}
	table.remove(table.find(&key))
	bury(1<<40, 20+graveTime)
	g.open(&table, 15+2*graveTime)
	if table.used != 1 {
		t.Error("the second grave was opened at the time of the first")
	}
}
