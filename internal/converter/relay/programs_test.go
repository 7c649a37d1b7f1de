package relay

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/converter/ask"
	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// A program is excluded by the path of its file, or by a symbolic link to it. Links that lead nowhere do no harm.
func TestExcludedPrograms(t *testing.T) {
	folder := t.TempDir()
	file, link, loop := filepath.Join(folder, "python3.11"), filepath.Join(folder, "python3"), filepath.Join(folder, "loop")
	for _, err := range []error{os.WriteFile(file, nil, 0o700), os.Symlink("python3.11", link), os.Symlink("loop", loop)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	x := &user{programs: withTargets([]string{link, loop, "/usr/bin/missing"})}
	for program, want := range map[string]bool{file: true, link: true, "/usr/bin/missing": true, folder: false, file + "x": false} {
		if got := x.Excludes(ask.Process{}, program); got != want {
			t.Errorf("%s is excluded: %v, want %v", program, got, want)
		}
	}
}

// A converter that one program cannot use stays available to others: the program's firewall may forbid the connection,
// or the program may have used up the ports to a server. Only after refusals for several servers in a row the converter
// is left alone.
func TestFailsForOneProgram(t *testing.T) {
	t.Parallel()
	bob := netip.MustParseAddrPort("192.0.2.1:5124")
	ns, dir := netnstest.New(t), t.TempDir()
	ns.Output(t, "ip", "addr", "add", "192.0.2.1/32", "dev", "lo")
	r, _ := started(t, ns, dir, "1")
	proof := key.Seal(cookie.Claim{Mark: 1, Client: bob.Addr(), Expires: time.Now().Add(time.Hour)})
	if _, err := r.Set(State{
		Serve: &Serve{Port: bob.Port(), Key: key},
		Use:   &Use{Mode: choice.Always, Converters: []Converter{{Name: "bob", At: bob, Cookie: proof}}},
	}); err != nil {
		t.Fatal(err)
	}
	c := ask.NewClient(filepath.Join(dir, ask.SocketName), ask.Timeout)
	t.Cleanup(c.Close)
	asked := func(what string) {
		t.Helper()
		for range 50 {
			if a := c.Ask(netip.MustParseAddrPort("203.0.113.1:80")); a.Convert != nil {
				return
			}
		}
		t.Errorf("%s, the converter is not used", what)
	}
	asked("before")
	c.Suspect(bob)
	asked("when it did not answer within a program's short limit")
	c.Unserved(bob, netip.MustParseAddrPort("203.0.113.2:80"))
	asked("when it could not be reached for another server")
	for range 10 {
		c.Refused(bob, netip.MustParseAddrPort("203.0.113.3:80"))
	}
	asked("when it refused another server")
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if status, err := r.Status(); err == nil && status.Parts[PartServe].Counters.Accepted > 0 { // the relay has made sure
			asked("when the relay has asked it")
			for i := range 10 {
				c.Refused(bob, netip.MustParseAddrPort(fmt.Sprintf("203.0.113.%d:80", 100+i)))
			}
			if c.Ask(netip.MustParseAddrPort("203.0.113.1:80")).Convert != nil {
				t.Error("it is used, though it refuses one server after the other")
			}
			if status, err = r.Status(); err != nil || !status.Aside[bob].Refuses {
				t.Errorf("set aside: %v, %v", status.Aside, err)
			}
			return
		}
	}
	t.Error("the relay did not ask the converter")
}

// A program's own socket is connected to an address in the server's family, because it may have no other family: to one of
// the first converter, or else of the next one that has such an address.
func TestFamilyOfProgramsSocket(t *testing.T) {
	bob4, bob6 := netip.MustParseAddrPort("192.0.2.1:5124"), netip.MustParseAddrPort("[2001:db8::1]:5124")
	carol6 := netip.MustParseAddrPort("[2001:db8::2]:5124")
	server4, server6 := netip.MustParseAddrPort("203.0.113.1:80"), netip.MustParseAddrPort("[2001:db8:1::1]:80")
	x := &user{members: map[netip.AddrPort]string{bob4: "bob", bob6: "bob", carol6: "carol"}}
	for _, c := range []struct {
		ways   []netip.AddrPort
		server netip.AddrPort
		want   netip.AddrPort
	}{
		{[]netip.AddrPort{bob6, bob4}, server4, bob4},
		{[]netip.AddrPort{bob4, carol6, bob6}, server6, bob6},
		{[]netip.AddrPort{bob4, bob6}, server4, bob4},
		{[]netip.AddrPort{carol6, bob6, bob4}, server4, bob4},
		{[]netip.AddrPort{bob4, carol6}, server6, carol6},
		{[]netip.AddrPort{bob6, carol6}, server4, bob6},
		{[]netip.AddrPort{bob6, bob4}, netip.AddrPortFrom(netip.AddrFrom16(server4.Addr().As16()), 80), bob4},
	} {
		if got := x.inPlace(c.ways, c.server); got != c.want {
			t.Errorf("%v of %v for %v, want %v", got, c.ways, c.server, c.want)
		}
	}
	// A converter that is silent at one address is not asked for the same server at another.
	for c, want := range map[netip.AddrPort][]netip.AddrPort{bob4: {bob4, bob6}, bob6: {bob6, bob4}, carol6: {carol6}} {
		if got := x.addressesOf(c); !slices.Equal(got, want) {
			t.Errorf("the converter at %v has the addresses %v, want %v", c, got, want)
		}
	}
}
