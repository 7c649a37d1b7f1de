package openvpn

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/detour-collective/dcol/internal/durable"
)

func TestRenewal(t *testing.T) {
	dir := t.TempDir()
	var paths []string
	for i := range 3 {
		paths = append(paths, filepath.Join(dir, strconv.Itoa(i)))
		if i == 0 {
			continue // is not there
		}
		if err := os.WriteFile(paths[i], nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	versions := durable.Stamps(paths...)
	v := func(certificate, key int) []durable.Stamp {
		return []durable.Stamp{versions[certificate], versions[key], versions[1]}
	}
	r := renewal{read: v(1, 1)}
	for i, look := range []struct {
		now []durable.Stamp
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
	before := pidIn(t, n.bob)
	issue(t, n.ca, "bob") // into the same files
	waitFor(t, "another openvpn", func() bool {
		pids := pidsIn(t, n.bob)
		return len(pids) == 1 && pids[0] != before
	})
	alice.untilDown()
	alice.untilConnected()
	works(t, n.alice, aliceIn[0].Addr(), "10.77.0.1:7")
	if err := s.Problem(); err != nil {
		t.Error(err)
	}
}
