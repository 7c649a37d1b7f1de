package twin

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/internal/units"
	"github.com/detour-collective/dcol/lab/chaos/plan"
	"github.com/detour-collective/dcol/lab/testbed"
)

func TestMain(m *testing.M) {
	testbed.Stage()
	goleak.VerifyTestMain(m)
}

// two hosts, joined by a link.
func hosts(t *testing.T) (*testbed.Network, *testbed.Host, *testbed.Host) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for network namespaces")
	}
	n, err := testbed.Build(t.Context(), testbed.Spec{
		Backend: testbed.BackendVeth,
		Hosts:   []testbed.HostSpec{{Name: "client"}, {Name: "server"}},
		Links:   []testbed.LinkSpec{{Name: "link", A: "client", B: "server"}},
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	client, server := n.Host("client"), n.Host("server")
	return n, client, server
}

// Connections of every kind come to their end whole, both with MPTCP and without,
// one after the other.
func TestWholePairs(t *testing.T) {
	_, client, server := hosts(t)
	var streams []plan.Stream
	for i, kind := range []plan.StreamKind{plan.Download, plan.Upload, plan.Messages} {
		streams = append(streams, plan.Stream{Kind: kind, Port: uint16(1000 + i), Rate: 2_000_000, Life: units.Duration(300 * time.Millisecond)})
	}
	p, err := Start(t.Context(), client, server, Entrance{}, streams)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	time.Sleep(time.Second)
	p.Stop()
	pairs := p.Pairs()
	if len(pairs) < 6 {
		t.Errorf("in a second there were %d pairs", len(pairs))
	}
	for _, pair := range pairs {
		for _, c := range pair.both() {
			<-c.Ended()
			c.Abort() // too late
			if r := c.Record(); !r.Whole || r.Received == 0 {
				t.Errorf("%s, MPTCP %v: whole %v after %d bytes: %v", r.Stream.Kind, r.MPTCP, r.Whole, r.Received, r.Err)
			}
		}
	}
	if n := p.strays.Load(); n != 0 {
		t.Errorf("%d strays", n)
	}
}

// A connection is known as plain TCP if its server has no MPTCP.
func TestFellBack(t *testing.T) {
	_, client, server := hosts(t)
	for port, mptcp := range map[uint16]bool{1000: true, 1001: false} {
		t.Run(fmt.Sprintf("server with MPTCP %v", mptcp), func(t *testing.T) {
			l, err := listen(server, port, mptcp)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			s, err := dial(t.Context(), client, netip.AddrPortFrom(server.Addr4(), port), true)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			accepted, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer accepted.Close()
			if got := fellBack(s); got == mptcp {
				t.Errorf("the client's socket fell back: %v", got)
			}
			if fellBack(accepted.(duplex)) {
				t.Error("the server's socket fell back")
			}
		})
	}
}

// Other bytes than were sent are noticed, and where they are.
func TestWrongBytes(t *testing.T) {
	check, sent := newChecker(7, toServer), newContent(7, toServer)
	data := make([]byte, 1000)
	sent.fill(data)
	if err := check.check(data[:300]); err != nil {
		t.Fatal(err)
	}
	data[512] ^= 4
	err := check.check(data[300:])
	if want := fmt.Sprintf("byte 512 is %#02x and was sent as %#02x", data[512], data[512]^4); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if err := newChecker(7, toClient).check(data[:10]); err == nil {
		t.Error("the other direction's bytes are taken for this one's")
	}
}
