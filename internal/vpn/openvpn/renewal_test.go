package openvpn

import (
	"os"
	"strings"
	"testing"
)

func TestRenewal(t *testing.T) {
	v := func(certificate, key int64) versions { return versions{{size: certificate}, {size: key}, {size: 9}} }
	r := renewal{read: v(1, 1)}
	for i, look := range []struct {
		now versions
		due bool
	}{
		{v(1, 1), false}, {v(1, 1), false},
		{v(2, 1), false},                  // the first of two
		{v(2, 2), false}, {v(2, 2), true}, // both, and settled
		{v(2, 2), false}, {v(2, 2), false},
		{v(0, 2), false}, {v(0, 2), false}, // taken away
		{v(2, 2), false}, {v(2, 2), false}, // and put back
	} {
		if got := r.due(look.now); got != look.due {
			t.Errorf("look %d: due %t, want %t", i, got, look.due)
		}
	}
}

// The server's certificate is replaced while it runs: the next handshake shows the new one.
func TestCertificateReplaced(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	c := n.serverConfig()
	s := n.serveWith(c)
	echo(t, n.bob, "10.77.0.1:7")
	admit(t, s, "alice", aliceIn)
	alice := n.connect(n.alice, n.clientConfig("alice", bobAtAlice), aliceIn)
	before := pidIn(t, c.Dir)
	issue(t, n.ca, "bob") // into the same files
	waitFor(t, "another openvpn", func() bool {
		text, err := os.ReadFile(c.Dir + "/pid")
		return err == nil && strings.TrimSpace(string(text)) != "" && pidIn(t, c.Dir) != before
	})
	alice.until(Reconnecting)
	alice.until(Connected)
	works(t, n.alice, aliceIn[0].Addr(), "10.77.0.1:7")
	if err := s.Problem(); err != nil {
		t.Error(err)
	}
}
