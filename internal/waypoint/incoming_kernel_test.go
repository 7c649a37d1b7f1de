package waypoint

import (
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/session/wire"
)

// toldPorts keeps what a waypoint tells of the ports at which connections are taken for members.
type toldPorts struct {
	mu   sync.Mutex
	list []Incoming
	n    int
}

func (p *toldPorts) tell(list []Incoming) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.list, p.n = list, p.n+1
}

func (p *toldPorts) last() ([]Incoming, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.list, p.n
}

// A member gets ports at which the converter takes connections for it, with the mark of its converted connections. The next
// agent knows of them when it starts. They end when the member is expelled.
func TestIncomingPorts(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	var told toldPorts
	n.config.Converter = &Converter{Port: 5124, Key: converterKey, Incoming: []uint16{8080, 8081, 8082}}
	n.config.TellIncoming = told.tell
	n.config.Allow = append(slices.Clone(n.config.Allow), netip.PrefixFrom(client4, 32))
	w, stop := n.start(t)
	if list, times := told.last(); list == nil || len(list) > 0 || times != 1 {
		t.Errorf("at first told %+v, %d times", list, times)
	}
	defer n.waypoint.Listen(t, "10.2.0.2:8082").Close() // of a program
	alice := overSession("alice", client4, 1)
	w.SessionUp(alice)
	proof := make([]byte, 24)
	grant, refusal := w.Converter(t.Context(), alice, wire.TunnelRequest{
		ID: 1, Kind: wire.Converter, Port: 5125, Incoming: []wire.Incoming{{Port: 8080, Cookie: proof}, {Port: 22, Cookie: proof}, {Port: 8082, Cookie: proof}},
	})
	want := []wire.IncomingGrant{{Port: 8080}, {Port: 22, Refused: wire.PortForbidden}, {Port: 8082, Refused: wire.PortTaken}}
	if refusal != nil || !slices.Equal(grant.Incoming, want) {
		t.Fatalf("granted %+v, %v; want %+v", grant.Incoming, refusal, want)
	}
	mark, err := converterKey.Open(grant.Cookie, client4, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	before, times := told.last()
	if times != 2 || len(before) != 1 || before[0].Port.Port != 8080 || before[0].Member != "alice" || before[0].Mark != mark ||
		before[0].Ways[0].At != netip.AddrPortFrom(client4, 5125) || !slices.Equal(before[0].Ways[0].Cookie, proof) {
		t.Errorf("told %+v, %d times", before, times)
	}
	if snap, err := w.Snapshot(); err != nil || snap.Refused[wire.PortForbidden] != 1 || snap.Refused[wire.PortTaken] != 1 {
		t.Errorf("%+v, %v", snap.Refused, err)
	}
	stop()
	w, _ = n.start(t)
	after, times := told.last()
	if times != 3 || len(after) != 1 || after[0].Mark != mark || !after[0].Ways[0].Expires.Equal(before[0].Ways[0].Expires) {
		t.Errorf("after a restart told %+v, %d times", after, times)
	}
	if err := w.Expel("alice"); err != nil {
		t.Fatal(err)
	}
	if list, _ := told.last(); len(list) != 1 || !list[0].Expelled || len(list[0].Ways) > 0 {
		t.Errorf("after her expulsion told %+v", list)
	}
}
