package openvpn

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func admit(t *testing.T, s *Server, member string, addrs []netip.Prefix) {
	t.Helper()
	if err := s.Admit(member, addrs); err != nil {
		t.Fatal(err)
	}
}

func TestTwoClients(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	s := n.serve()
	echo(t, n.bob, "10.77.0.1:7")
	echo(t, n.bob, "[fd77::1]:7")
	admit(t, s, "alice", aliceIn)
	admit(t, s, "carol", carolIn)
	n.connect(n.alice, n.clientConfig("alice", bobAtAlice), aliceIn)
	n.connect(n.carol, n.clientConfig("carol", bobAtCarol), carolIn)
	works(t, n.alice, aliceIn[0].Addr(), "10.77.0.1:7")
	works(t, n.alice, aliceIn[1].Addr(), "[fd77::1]:7")
	works(t, n.carol, carolIn[0].Addr(), "10.77.0.1:7")

	clients, err := s.Clients()
	if err != nil {
		t.Fatal(err)
	}
	if len(clients) != 2 || clients[0].Member != "alice" || clients[1].Member != "carol" {
		t.Fatalf("clients: %+v", clients)
	}
	if c := clients[0]; c.Remote.Addr().String() != "192.0.2.2" || c.Received < 200_000 || c.Sent < 200_000 {
		t.Errorf("alice: %+v", c)
	}

	// What is from an address that is not hers does not come out at the server.
	addresses(t, n.alice, clientIf, "10.77.0.9/26")
	if c, err := dialFor(n.alice, time.Second, netip.MustParseAddr("10.77.0.9"), "10.77.0.1:7"); err == nil {
		c.Close()
		t.Error("alice connected from an address that she was not given")
	}
}

func TestOverIPv6(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	s := n.serve()
	echo(t, n.bob, "10.77.0.1:7")
	admit(t, s, "alice", aliceIn)
	c := n.clientConfig("alice", netip.MustParseAddrPort("[2001:db8:2::1]:1194"))
	n.connect(n.alice, c, aliceIn)
	works(t, n.alice, aliceIn[0].Addr(), "10.77.0.1:7")
}

// What a member may be called and a path may contain comes out of openvpn's parser as it went in.
func TestOddPaths(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	odd := filepath.Join(t.TempDir(), `a "b" \c 'd' #e ;f ü`)
	if err := os.Mkdir(odd, 0o700); err != nil {
		t.Fatal(err)
	}
	c := n.serverConfig()
	c.Dir = filepath.Join(odd, "run")
	for _, p := range []*string{&c.Files.Certificate, &c.Files.Key, &c.Files.CA, &c.Files.CRL} {
		data, err := os.ReadFile(*p)
		if err != nil {
			t.Fatal(err)
		}
		*p = filepath.Join(odd, filepath.Base(*p))
		if err := os.WriteFile(*p, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := n.serveWith(c)
	admit(t, s, "alice", aliceIn)
	n.connect(n.alice, n.clientConfig("alice", bobAtAlice), aliceIn)
}

// After Stop nothing is left; while it runs nobody else can read what is there.
func TestLeavesNothing(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	c := n.serverConfig()
	s := n.serveWith(c)
	admit(t, s, "alice", aliceIn)
	cc := n.clientConfig("alice", bobAtAlice)
	alice := n.connect(n.alice, cc, aliceIn)
	for _, dir := range []string{c.Dir, cc.Dir} {
		for path, want := range map[string]os.FileMode{".": 0o700, "openvpn.conf": 0o600, "pid": 0o600} {
			info, err := os.Stat(filepath.Join(dir, path))
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode().Perm() != want {
				t.Errorf("%s in %s has mode %o, want %o", path, dir, info.Mode().Perm(), want)
			}
		}
	}
	pids := []int{pidIn(t, c.Dir), pidIn(t, cc.Dir)}

	alice.Stop()
	s.Stop()
	<-s.Done()
	if err := s.Err(); err != nil {
		t.Error(err)
	}
	for _, dir := range []string{c.Dir, cc.Dir} {
		if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", dir, err)
		}
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
			t.Errorf("openvpn %d is still there: %v", pid, err)
		}
	}
	for name, ns := range map[string]interface {
		Output(testing.TB, string, ...string) string
	}{serverIf: n.bob, clientIf: n.alice} {
		if links := ns.Output(t, "ip", "-o", "link"); strings.Contains(links, name) {
			t.Errorf("%s is still there:\n%s", name, links)
		}
		if tables := ns.Output(t, "nft", "list", "tables"); tables != "" {
			t.Errorf("nftables still has %s", tables)
		}
	}
}

func pidIn(t *testing.T, dir string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// A packet in the tunnel costs 36 bytes over IPv4, as in the original system, 56 over IPv6, and the
// largest one is not cut.
func TestPacketSize(t *testing.T) {
	for name, remote := range map[string]netip.AddrPort{
		"IPv4": bobAtAlice, "IPv6": netip.MustParseAddrPort("[2001:db8:2::1]:1194"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			mtu := MTU(1500, remote.Addr())
			sc, cc := n.serverConfig(), n.clientConfig("alice", remote)
			sc.MTU, cc.MTU = mtu, mtu
			s := n.serveWith(sc)
			echo(t, n.bob, "10.77.0.1:7")
			admit(t, s, "alice", aliceIn)
			n.connect(n.alice, cc, aliceIn)

			const header = 20 + 8
			want := map[string]int{"IPv4": 36, "IPv6": 56}[name]
			seen := n.capture()
			for _, size := range []int{200, 1000, mtu} {
				n.datagram(aliceIn[0].Addr(), "10.77.0.1:9", make([]byte, size-header))
				if got := seen.awaitLarger(size); got != size+want {
					t.Errorf("a packet of %d bytes left as one of %d, want %d more", size, got, want)
				}
			}
			if mtu+want != 1500 {
				t.Errorf("the largest packet, of %d bytes, does not fill the path's 1500", mtu)
			}
			works(t, n.alice, aliceIn[0].Addr(), "10.77.0.1:7")
			if fragments := seen.fragments.Load(); fragments > 0 {
				t.Errorf("%d packets were fragments", fragments)
			}
		})
	}
}

// datagram sends one UDP packet from an address of alice's.
func (n *network) datagram(from netip.Addr, to string, payload []byte) {
	n.t.Helper()
	n.alice.Must(n.t, func() error {
		d := net.Dialer{LocalAddr: &net.UDPAddr{IP: from.AsSlice()}}
		c, err := d.DialContext(n.t.Context(), "udp", to)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write(payload)
		return err
	})
}

func TestPortInUse(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	var other net.PacketConn
	n.bob.Must(t, func() (err error) {
		var lc net.ListenConfig
		other, err = lc.ListenPacket(t.Context(), "udp", fmt.Sprintf(":%d", serverPort))
		return err
	})
	defer other.Close()
	c := n.serverConfig()
	err := n.bob.Do(func() error {
		s, err := StartServer(t.Context(), c)
		if err == nil {
			s.Stop()
		}
		return err
	})
	var port *PortError
	if !errors.As(err, &port) || port.Port != serverPort {
		t.Fatalf("error: %v", err)
	}
	if links := n.bob.Output(t, "ip", "-o", "link"); strings.Contains(links, serverIf) {
		t.Errorf("the interface was left behind:\n%s", links)
	}
	if tables := n.bob.Output(t, "nft", "list", "tables"); tables != "" {
		t.Errorf("the guard was left behind: %s", tables)
	}
	if _, err := os.Lstat(c.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s was left behind", c.Dir)
	}
}

// A file that is wrong is the error of the start, in words.
func TestBadFiles(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	for name, spoil := range map[string]func(*Files){
		"missing":     func(f *Files) { f.Certificate = "/nonexistent/bob.crt" },
		"newline":     func(f *Files) { f.CA = "/etc/a\nup /bin/sh" },
		"too long":    func(f *Files) { f.CA = "/" + strings.Repeat("x", 300) },
		"other's key": func(f *Files) { f.Key = issue(t, n.ca, "carol").Key },
	} {
		c := n.serverConfig()
		spoil(&c.Files)
		err := n.bob.Do(func() error {
			s, err := StartServer(t.Context(), c)
			if err == nil {
				s.Stop()
			}
			return err
		})
		if err == nil {
			t.Errorf("%s: the server started", name)
			continue
		}
		want := map[string]string{
			"missing": "/nonexistent/bob.crt", "newline": "control character", "too long": "shorter path", "other's key": "private key",
		}[name]
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %q does not say %q", name, err, want)
		}
	}
}
