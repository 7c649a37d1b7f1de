package inband

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/packet"
)

func openSender(t testing.TB, ns *netnstest.NS, config SenderConfig) *Sender {
	t.Helper()
	var s *Sender
	ns.Must(t, func() (err error) {
		s, err = OpenSender(config)
		return err
	})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func expect(t testing.TB, s *Sender, j Join) {
	t.Helper()
	if err := s.Expect(j); err != nil {
		t.Fatal(err)
	}
}

// TestSend runs the egress program over SYNs that have the option already, as
// the other program leaves them.
func TestSend(t *testing.T) {
	s := openSender(t, netnstest.New(t), SenderConfig{})
	asSeen := netip.MustParseAddr("192.0.2.77") // of the client, behind a NAT
	joins := map[string]*Auth{
		"port covered":     {Key: memberKey, Client: asSeen, ClientPort: true},
		"port not covered": {Key: memberKey, Client: asSeen},
		"no authenticator": nil,
	}
	good := joinOptions(77, 0, optionDetour(serverAddr))
	for _, c := range []struct {
		name   string
		change func(*sample)
		writes bool
	}{
		{"as the kernel sends it", func(p *sample) {}, true},
		{"IP options", func(p *sample) { p.ipOptions = []byte{148, 4, 0, 0} }, true},
		{"timestamps at an odd place", func(p *sample) {
			p.options = slices.Concat([]byte{1}, optionTimestamps(77, 0), optionDetour(serverAddr))
		}, true},
		{"another remote port", func(p *sample) { p.to = netip.AddrPortFrom(p.to.Addr(), 80) }, false},
		{"another local port", func(p *sample) { p.from = netip.AddrPortFrom(p.from.Addr(), 1) }, false},
		{"no option", func(p *sample) { p.options = joinOptions(77, 0, nil) }, false},
		{"no timestamps", func(p *sample) { p.options = optionDetour(serverAddr) }, false},
		{"ACK set", func(p *sample) { p.flags |= packet.ACK }, false},
		{"no SYN", func(p *sample) { p.flags = packet.ACK }, false},
		{"fragment", func(p *sample) { p.fragment = 0x2000 }, false},
	} {
		for name, auth := range joins {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				j := Join{Local: clientPort, Remote: waypointPort, Server: serverAddr, Auth: auth}
				expect(t, s, j)
				defer s.Forget(j.Local, j.Remote)
				p := syn(good)
				c.change(&p)
				for _, kind := range []struct {
					program *ebpf.Program
					link    int
					packet  []byte
				}{
					{s.objects.SendEthernet, 14, p.ethernet()},
					{s.objects.SendHeaderless, 0, p.headerless()},
				} {
					after, mark := run(t, kind.program, kind.packet, 9)
					if mark != 9 {
						t.Errorf("the mark is %d", mark)
					}
					before, after := kind.packet[kind.link:], after[kind.link:]
					if !c.writes || auth == nil {
						if !bytes.Equal(before, after) {
							t.Errorf("%x became\n%x", before, after)
						}
						continue
					}
					tcp := after[int(after[0]&15)*4:]
					tsecr := binary.BigEndian.Uint32(tcp[20+parse(tcp[20:]).tsvalAt+4:])
					if want := Authenticator(j, p.seq, 77); tsecr != want {
						t.Errorf("authenticator %#x, want %#x", tsecr, want)
					}
					if !checksumHolds(after) {
						t.Error("the checksum is wrong")
					}
				}
			})
		}
	}
}

func TestForget(t *testing.T) {
	s := openSender(t, netnstest.New(t), SenderConfig{})
	j := Join{Local: clientPort, Remote: waypointPort, Server: serverAddr, Auth: &Auth{Client: clientPort.Addr()}}
	expect(t, s, j)
	s.Forget(j.Local, j.Remote)
	s.Forget(j.Local, j.Remote)
	s.Forget(netip.AddrPort{}, netip.AddrPort{})
	frame := syn(joinOptions(77, 0, optionDetour(serverAddr))).ethernet()
	if after, _ := run(t, s.objects.SendEthernet, frame, 0); !bytes.Equal(after, frame) {
		t.Error("the authenticator of a join that was forgotten was written")
	}
}

func TestJoinsThatCannotBe(t *testing.T) {
	s := openSender(t, netnstest.New(t), SenderConfig{})
	six := netip.MustParseAddr("2001:db8::1")
	for name, change := range map[string]func(*Join){
		"IPv6 source":      func(j *Join) { j.Local = netip.AddrPortFrom(six, 1) },
		"IPv6 destination": func(j *Join) { j.Remote = netip.AddrPortFrom(six, 1) },
		"IPv6 server":      func(j *Join) { j.Server = six },
		"IPv6 client":      func(j *Join) { j.Auth.Client = six },
		"no local port":    func(j *Join) { j.Local = netip.AddrPortFrom(j.Local.Addr(), 0) },
		"no remote port":   func(j *Join) { j.Remote = netip.AddrPortFrom(j.Remote.Addr(), 0) },
		"no server":        func(j *Join) { j.Server = netip.Addr{} },
		"no client":        func(j *Join) { j.Auth.Client = netip.Addr{} },
	} {
		j := Join{Local: clientPort, Remote: waypointPort, Server: serverAddr, Auth: &Auth{Client: clientPort.Addr()}}
		change(&j)
		if err := s.Expect(j); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestNoTimestamps(t *testing.T) {
	ns := netnstest.New(t)
	s := openSender(t, ns, SenderConfig{})
	j := Join{Local: clientPort, Remote: waypointPort, Server: serverAddr, Auth: &Auth{Client: clientPort.Addr()}}
	for _, c := range []struct {
		value string
		want  error
	}{{"0", ErrNoTimestamps}, {"1", nil}, {"2", nil}} {
		ns.Must(t, func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_timestamps", []byte(c.value), 0) })
		if err := s.Expect(j); !errors.Is(err, c.want) {
			t.Errorf("tcp_timestamps=%s: %v", c.value, err)
		}
	}
	ns.Must(t, func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_timestamps", []byte("0"), 0) })
	j.Auth = nil
	expect(t, s, j)
}
