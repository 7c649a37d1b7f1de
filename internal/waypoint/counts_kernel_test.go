package waypoint

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// The agent's end does not interrupt a connection with continuous data, and the next agent forwards it again, with
// its earlier counts. The packaged service's rights are enough for that.
func TestFastPathWithoutAnAgent(t *testing.T) {
	for name, rights := range map[string][]int{"all rights": nil, "the service's rights": {unix.CAP_NET_ADMIN, unix.CAP_BPF}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			n.rights = rights
			testWithoutAnAgent(t, n)
		})
	}
}

func testWithoutAnAgent(t *testing.T, n *network) {
	server := n.echo(t, "10.2.0.1:443")
	w, stop := n.start(t)
	mustMap(t, w, peer("alice", client4), server, 443)
	c := n.mustDial(t, netip.AddrPortFrom(waypoint4, 443))
	waitFast(t, w, 1, c)
	total := 0
	talkWhile := func(change func()) {
		t.Helper()
		const size = 1 << 20
		done := make(chan struct{})
		go func() { defer close(done); change() }()
		for after := 0; after < 5; {
			select {
			case <-done:
				after++
			default:
			}
			if err := c.talk(size); err != nil {
				t.Fatal(err)
			}
			total += size
		}
	}
	talkWhile(func() {}) // on the fast path
	talkWhile(stop)
	seen := n.tracked(t)
	if err := c.talk(1 << 20); err != nil {
		t.Fatal(err)
	}
	total += 1 << 20
	if now := n.tracked(t); now[0].BytesOrigin < seen[0].BytesOrigin+1<<20 {
		t.Errorf("without an agent netfilter saw %+v, then %+v", seen, now)
	}
	talkWhile(func() { w, stop = n.start(t) })
	waitFast(t, w, 1, c)
	talkWhile(func() {})
	most := uint64(total + total/10) // with headers and acknowledgements
	if s, err := w.Snapshot(); err != nil || s.Members[0].BytesFromClient < uint64(total) || s.Members[0].BytesFromClient > most {
		t.Errorf("the snapshot has %+v of %d bytes, %v", s.Members, total, err)
	}
	closed := n.forget(t)
	if *closed.BytesFromClient < uint64(total) || *closed.BytesFromClient > most ||
		*closed.BytesToClient < uint64(total) || *closed.BytesToClient > most {
		t.Errorf("the log has %d and %d bytes of %d", *closed.BytesFromClient, *closed.BytesToClient, total)
	}
	stop()
	n.cleanUp(t)
	if _, err := os.Stat(n.config.Counts); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("CleanUp leaves the counts: %v", err)
	}
}
