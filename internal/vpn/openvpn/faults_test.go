package openvpn

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

func TestNotAdmitted(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	s := n.serve()
	echo(t, n.bob, "10.77.0.1:7")
	admit(t, s, "carol", carolIn) // somebody else is
	alice := n.start(n.alice, n.clientConfig("alice", bobAtAlice))
	alice.untilReason("refuses this member: not admitted (next")
	if clients := s.clients(); len(clients) != 0 {
		t.Errorf("clients: %v", clients)
	}
	// Once she is admitted, trying again is enough.
	admit(t, s, "alice", aliceIn)
	alice.untilConnected()
	for _, a := range aliceIn {
		addresses(t, n.alice, clientIf, tunnelMTU, a.String())
	}
	works(t, n.alice, aliceIn[0].Addr(), "10.77.0.1:7")
}

// Certificates that do not count, on either side.
func TestBadCertificates(t *testing.T) {
	stranger := func(t *testing.T) Files { return issue(t, newCA(t), "alice") }
	tests := map[string]struct {
		change func(t *testing.T, n *network, server *ServerConfig, client *ClientConfig)
		reason string // at the client
	}{
		"the client is of another collective": {
			func(t *testing.T, _ *network, _ *ServerConfig, c *ClientConfig) {
				other := stranger(t)
				c.Files.Certificate, c.Files.Key = other.Certificate, other.Key // it takes the server for good
			}, "no TLS handshake",
		},
		"the server is of another collective": {
			func(t *testing.T, _ *network, _ *ServerConfig, c *ClientConfig) {
				other := stranger(t)
				c.Files.CA, c.Files.CRL = other.CA, other.CRL
			}, "VERIFY ERROR",
		},
		"the client is revoked": {
			func(t *testing.T, n *network, _ *ServerConfig, _ *ClientConfig) { revoke(t, n, "alice") }, "no TLS handshake",
		},
		"the server is revoked": {
			func(t *testing.T, n *network, _ *ServerConfig, _ *ClientConfig) { revoke(t, n, "bob") }, "revoked",
		},
		"the server is another member": {
			func(_ *testing.T, _ *network, _ *ServerConfig, c *ClientConfig) { c.ServerName = "carol" }, "X509NAME",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			sc, cc := n.serverConfig(), n.clientConfig("alice", bobAtAlice)
			test.change(t, n, &sc, &cc)
			s := n.serveWith(sc)
			admit(t, s, "alice", aliceIn)
			alice := n.start(n.alice, cc)
			state := alice.settled()
			if state.Connected {
				t.Fatal("the client connected")
			}
			if !strings.Contains(state.Reason, test.reason) {
				t.Errorf("reason %q does not say %q", state.Reason, test.reason)
			}
			if clients := s.clients(); len(clients) != 0 {
				t.Errorf("clients: %v", clients)
			}
		})
	}
}

func revoke(t *testing.T, n *network, name string) {
	t.Helper()
	if _, err := n.ca.Revoke(name, collective.KeyCompromise); err != nil {
		t.Fatal(err)
	}
}

// The list of those revoked is looked at for each new connection: the server runs on.
func TestRevokedLater(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	s := n.serve()
	admit(t, s, "alice", aliceIn)
	cc := n.clientConfig("alice", bobAtAlice)
	alice := n.connect(n.alice, cc, nil)
	alice.Stop()
	revoke(t, n, "alice")
	again := n.start(n.alice, cc)
	if again.settled().Connected {
		t.Error("the client connected with a certificate that is revoked")
	}
}

func TestExpel(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	s := n.serve()
	echo(t, n.bob, "10.77.0.1:7")
	admit(t, s, "alice", aliceIn)
	admit(t, s, "carol", carolIn)
	alice := n.connect(n.alice, n.clientConfig("alice", bobAtAlice), aliceIn)
	n.connect(n.carol, n.clientConfig("carol", bobAtCarol), carolIn)
	c, err := dial(n.alice, aliceIn[0].Addr(), "10.77.0.1:7")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := bounce(c, 1000); err != nil {
		t.Fatal(err)
	}

	if err := s.Expel("alice"); err != nil {
		t.Fatal(err)
	}
	// At once, whether openvpn has already ended the connection or not.
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("a packet of an expelled member came through")
	}
	alice.untilReason("not admitted")
	if clients := s.clients(); len(clients) != 1 || clients["carol"].member == "" {
		t.Errorf("clients: %+v", clients)
	}
	works(t, n.carol, carolIn[0].Addr(), "10.77.0.1:7")
	// Her next connection has another client number than peer number.
	admit(t, s, "alice", aliceIn)
	alice.untilConnected()
	works(t, n.alice, aliceIn[0].Addr(), "10.77.0.1:7")
	if err := s.Expel("nobody"); err != nil {
		t.Errorf("expel one who is not there: %v", err)
	}
}

// A member that is given another address connects anew and has it then.
func TestOtherAddress(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	s := n.serve()
	admit(t, s, "alice", aliceIn)
	alice := n.connect(n.alice, n.clientConfig("alice", bobAtAlice), nil)
	admit(t, s, "alice", aliceIn) // the same: nothing happens
	if state := alice.State(); !state.Connected {
		t.Errorf("admitted again with the same address: %v", state)
	}
	admit(t, s, "alice", carolIn)
	alice.untilDown()
	alice.untilConnected()
	if clients := s.clients(); len(clients) != 1 || clients["alice"].addresses[0] != carolIn[0] {
		t.Errorf("clients: %+v", clients)
	}
}

// OpenVPN is killed, at one end and then at the other: it comes back, and what used the tunnel goes
// on as if packets had been lost.
func TestKilled(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	s := n.serve()
	echo(t, n.bob, "10.77.0.1:7")
	admit(t, s, "alice", aliceIn)
	alice := n.connect(n.alice, n.clientConfig("alice", bobAtAlice), aliceIn)
	c, err := dial(n.alice, aliceIn[0].Addr(), "10.77.0.1:7")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	for _, end := range []struct {
		name string
		ns   *netnstest.NS
	}{{"client", n.alice}, {"server", n.bob}} {
		if err := bounce(c, 10_000); err != nil {
			t.Fatalf("before the %s is killed: %v", end.name, err)
		}
		if err := unix.Kill(pidIn(t, end.ns), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		alice.untilReason(map[string]string{"client": "killed", "server": "no packet from 192.0.2.1:1194"}[end.name])
		alice.untilConnected()
		if err := bounce(c, 10_000); err != nil {
			t.Errorf("after the %s was killed: %v", end.name, err)
		}
	}
	if err := s.Problem(); err != nil {
		t.Errorf("the server's problem is over, but: %v", err)
	}
}

// The server has another address from now on, and the old one is gone.
func TestServerMoves(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	s := n.serve()
	echo(t, n.bob, "10.77.0.1:7")
	admit(t, s, "alice", aliceIn)
	alice := n.connect(n.alice, n.clientConfig("alice", bobAtAlice), aliceIn)
	c, err := dial(n.alice, aliceIn[0].Addr(), "10.77.0.1:7")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := bounce(c, 1000); err != nil {
		t.Fatal(err)
	}
	n.bob.Output(t, "ip", "addr", "flush", "dev", "alice")
	n.bob.Output(t, "ip", "addr", "add", "192.0.2.4/24", "dev", "alice")
	alice.Restart(netip.MustParseAddrPort("192.0.2.4:1194"))
	if state := alice.State(); state.Connected {
		t.Errorf("just after Restart: %v", state)
	}
	alice.untilConnected()
	if err := bounce(c, 1000); err != nil {
		t.Errorf("after the move: %v", err)
	}
}

// The server answers from the address that it was asked at, not from the one its route prefers.
func TestSecondAddress(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	s := n.serve()
	echo(t, n.bob, "10.77.0.1:7")
	admit(t, s, "alice", aliceIn)
	n.connect(n.alice, n.clientConfig("alice", netip.MustParseAddrPort("192.0.2.3:1194")), aliceIn)
	works(t, n.alice, aliceIn[0].Addr(), "10.77.0.1:7")
}
