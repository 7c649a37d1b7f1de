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

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
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

	clients := s.clients()
	if len(clients) != 2 || clients["carol"].member == "" || clients["alice"].remote.Addr().String() != "192.0.2.2" {
		t.Errorf("clients: %+v", clients)
	}

	// What is from an address that is not hers does not come out at the server.
	addresses(t, n.alice, clientIf, tunnelMTU, "10.77.0.9/26")
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

// What a path may contain arrives at openvpn as it is.
func TestOddPaths(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	odd := filepath.Join(t.TempDir(), `a "b" \c 'd' #e ;f ü`+"\n--up x")
	if err := os.Mkdir(odd, 0o700); err != nil {
		t.Fatal(err)
	}
	c := n.serverConfig()
	c.Dir = filepath.Join(odd, "run")
	long := filepath.Join(odd, strings.Repeat("x", 250))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*string{&c.Files.Certificate, &c.Files.Key, &c.Files.CA, &c.Files.CRL} {
		data, err := os.ReadFile(*p)
		if err != nil {
			t.Fatal(err)
		}
		*p = filepath.Join(long, filepath.Base(*p))
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
	alice := n.connect(n.alice, n.clientConfig("alice", bobAtAlice), aliceIn)
	info, err := os.Stat(c.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o700 {
		t.Errorf("%s has mode %o, want 700", c.Dir, info.Mode().Perm())
	}
	pids := []int{pidIn(t, n.bob), pidIn(t, n.alice)}

	if err := errors.Join(alice.Stop(), s.Stop()); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(c.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there: %v", c.Dir, err)
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
			t.Errorf("openvpn %d is still there: %v", pid, err)
		}
	}
	for name, ns := range map[string]interface {
		Output(testing.TB, string, ...string) string
	}{serverIf: n.bob, clientIf: n.alice} {
		// A process that another test is starting may have a copy of the TUN's descriptor for a moment.
		waitFor(t, name+" is gone", func() bool { return !strings.Contains(ns.Output(t, "ip", "-o", "link"), name) })
		if tables := ns.Output(t, "nft", "list", "tables"); tables != "" {
			t.Errorf("nftables still has %s", tables)
		}
	}
}

// pidsIn lists the openvpns that run in a namespace.
func pidsIn(t *testing.T, ns *netnstest.NS) []int {
	t.Helper()
	var here string
	ns.Must(t, func() (err error) {
		here, err = os.Readlink("/proc/thread-self/ns/net")
		return err
	})
	comms, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, comm := range comms {
		name, _ := os.ReadFile(comm)
		there, _ := os.Readlink(filepath.Join(filepath.Dir(comm), "ns/net"))
		if string(name) != "openvpn\n" || there != here {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(comm)))
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

func pidIn(t *testing.T, ns *netnstest.NS) int {
	t.Helper()
	pids := pidsIn(t, ns)
	if len(pids) != 1 {
		t.Fatalf("there are %d openvpns: %v", len(pids), pids)
	}
	return pids[0]
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
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("UDP port %d is in use", serverPort)) {
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
		want := map[string]string{"missing": "/nonexistent/bob.crt", "other's key": "private key"}[name]
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %q does not say %q", name, err, want)
		}
	}
}
