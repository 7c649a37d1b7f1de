package relay

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/converter/ask"
	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/client"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// A user's reports change nothing for other users, for root and for the LAN's hosts. Those of root hold for all.
func TestReportsOfUsers(t *testing.T) {
	bob, server := netip.MustParseAddrPort("127.0.0.99:9"), netip.MustParseAddrPort("203.0.113.1:443")
	phone := choice.Who{Host: netip.MustParseAddr("10.0.0.9")}
	reports := map[string]func(x *user, p ask.Process){
		"the server is plain":       func(x *user, p ask.Process) { x.Learned(p, server, false) },
		"the server speaks MPTCP":   func(x *user, p ask.Process) { x.Learned(p, server, true) },
		"the converter was silent":  func(x *user, p ask.Process) { x.Unserved(p, bob, server) },
		"the converter refused":     func(x *user, p ask.Process) { x.Refused(p, bob, server) },
		"the converter refuses all": func(x *user, p ask.Process) { refuseMany(x, p, bob) },
	}
	for name, report := range reports {
		for _, mode := range []choice.Mode{choice.Auto, choice.Always} {
			usual := mode == choice.Always
			for _, uid := range []uint32{1000, 0} {
				x := &user{client: client.New(client.Config{Policy: choice.Policy{Mode: mode}, Way: func(netip.AddrPort) (client.Way, bool) { return client.Way{}, false }})}
				x.client.Update(func(c *choice.Choice) { c.SetConverters([]netip.AddrPort{bob}) })
				converted := func(who choice.Who) bool { return slices.Contains(x.client.Choose(who, server), bob) }
				report(x, ask.Process{UID: uid})
				changed := false
				for _, who := range []choice.Who{{}, {User: 1001}, phone} {
					changed = changed || converted(who) != usual
				}
				// In auto mode, the converter is used for this server only if it is known to be plain.
				want := uid == 0 && (usual != (name == "the server is plain"))
				if changed != want {
					t.Errorf("%s, mode %d, user %d: it changes others' connections: %v, want %v", name, mode, uid, changed, want)
				}
				if x.client.IsPlain(server) != (uid == 0 && name == "the server is plain") {
					t.Errorf("%s, mode %d, user %d: the server is plain: %v", name, mode, uid, x.client.IsPlain(server))
				}
				if uid != 0 && usual && converted(choice.Who{User: uid}) == (name == "the server speaks MPTCP" || name == "the converter was silent" || name == "the converter refused") {
					t.Errorf("%s: it does not hold for the user itself", name)
				}
			}
		}
	}
}

func refuseMany(x *user, p ask.Process, converter netip.AddrPort) {
	for i := range 16 {
		x.Refused(p, converter, netip.MustParseAddrPort(fmt.Sprintf("192.0.2.%d:443", i)))
	}
}

// A user cannot end the time for which a converter is left alone, nor prefer a converter for others.
func TestUsersCannotPraiseConverters(t *testing.T) {
	near, far := netip.MustParseAddrPort("127.0.0.98:9"), netip.MustParseAddrPort("127.0.0.99:9")
	server := netip.MustParseAddrPort("203.0.113.1:443")
	x := &user{client: client.New(client.Config{Policy: choice.Policy{Mode: choice.Always}})}
	x.client.Update(func(c *choice.Choice) {
		c.SetConverters([]netip.AddrPort{near, far})
		c.Carried(far, server, 2, 2, time.Now())
		c.Carried(near, server, 1, 1, time.Now())
		c.Failed(near, time.Minute, time.Now())
	})
	p := ask.Process{UID: 1000}
	x.Carried(p, netip.AddrPort{}, near, server, 1, 1)
	if got := x.client.Choose(choice.Who{}, server); !slices.Equal(got, []netip.AddrPort{far}) {
		t.Errorf("the ways are %v", got)
	}
	x.Carried(ask.Process{}, netip.AddrPort{}, near, server, 3, 3)
	x.Carried(p, netip.AddrPort{}, near, server, 1, 1)
	if got := x.client.Choose(choice.Who{}, server); !slices.Equal(got, []netip.AddrPort{far, near}) {
		t.Errorf("the ways are %v", got)
	}
}

// forged is the server of which forge reports that it is plain.
var forged = netip.MustParseAddrPort("203.0.113.1:443")

// forge sends a forged report to the relay with this socket, as the user of this process. The answer to a question shows that
// the report has arrived.
func forge(socket string) error {
	c := ask.NewClient(socket, 10*time.Second)
	defer c.Close()
	c.Learned(forged, false)
	if a := c.Ask(forged); a.Convert == nil && a.KeepFor == 0 {
		return errors.New("the relay does not answer")
	}
	return nil
}

// The relay tells users apart by what the kernel says of their processes.
func TestForgedReports(t *testing.T) {
	t.Parallel()
	ns, dir := netnstest.New(t), t.TempDir()
	r, _ := started(t, ns, dir, "1")
	bob := netip.MustParseAddrPort("192.0.2.1:5124")
	if _, err := r.Set(State{Use: &Use{Mode: choice.Auto, Converters: []Converter{{Name: "bob", At: bob, Cookie: []byte{1}}}}}); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, ask.SocketName)
	for _, folder := range []string{filepath.Dir(dir), dir} { // as /run/dcol, they are open to all users
		if err := os.Chmod(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, uid := range []uint32{65534, 0} {
		cmd := exec.Command("/proc/self/exe", "forge", socket)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		cmd.Stderr = t.Output()
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		c := ask.NewClient(socket, ask.Timeout)
		if converted := c.Ask(forged).Convert != nil; converted != (uid == 0) {
			t.Errorf("after a report of user %d, root's connection is converted: %v", uid, converted)
		}
		c.Close()
	}
}
