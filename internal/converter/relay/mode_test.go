package relay

import (
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/converter/ask"
	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// A relay without an agent follows a user's choice: programs of dcol run, the proxy and a LAN's hosts are not converted any
// more. It goes on as a converter for others.
func TestModeWithoutAgent(t *testing.T) {
	t.Parallel()
	ns, dir := netnstest.New(t), t.TempDir()
	bob := netip.MustParseAddrPort("192.0.2.1:5124")
	state := State{
		Serve: &Serve{Port: bob.Port(), Key: key},
		Use: &Use{
			Mode: choice.Always, Proxy: "127.0.0.1:1080", Gateway: []string{"lan0"},
			Converters: []Converter{{Name: "bob", At: bob, Cookie: key.Seal(cookie.Claim{Mark: 1, Client: bob.Addr(), Expires: time.Now().Add(time.Hour)})}},
		},
	}
	agent, _ := started(t, ns, dir, "1")
	c := ask.NewClient(filepath.Join(dir, ask.SocketName), ask.Timeout)
	t.Cleanup(c.Close)
	set := func(s State) {
		t.Helper()
		if _, err := agent.Set(s); err != nil {
			t.Fatal(err)
		}
	}
	servers := byte(0)
	expect := func(what string, converted bool, parts ...string) {
		t.Helper()
		servers++ // answers are remembered
		if a := c.Ask(netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, servers}), 80)); (a.Convert != nil) != converted {
			t.Errorf("%s: converted: %v, want %v", what, a.Convert != nil, converted)
		}
		status, err := agent.Status()
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{PartServe, PartProxy, PartGateway4, PartGateway6} {
			if got, want := status.Parts[part] != nil, slices.Contains(parts, part); got != want {
				t.Errorf("%s: the part %q is there: %v, want %v", what, part, got, want)
			}
		}
	}
	choose := func(mode choice.Mode) {
		t.Helper()
		user, err := Dial(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer user.Close()
		if err := user.SetMode(mode); err != nil {
			t.Fatal(err)
		}
	}
	set(state)
	expect("at first", true, PartServe, PartProxy, PartGateway4, PartGateway6)
	choose(choice.Auto)
	expect("auto, of a server that is not known", false, PartServe, PartProxy, PartGateway4, PartGateway6)
	choose(choice.Always)
	expect("always", true, PartServe, PartProxy, PartGateway4, PartGateway6)
	choose(choice.Never)
	expect("never", false, PartServe, PartProxy)
	choose(choice.Always)
	expect("always, without converters that are known", false, PartServe, PartProxy)
	set(state)
	expect("another State", true, PartServe, PartProxy, PartGateway4, PartGateway6)
	use := *state.Use
	use.Proxy = ""
	set(State{Serve: state.Serve, Use: &use})
	choose(choice.Never)
	choose(choice.Never)
	if status, err := agent.Status(); err != nil || len(status.Parts) != 1 || status.Parts[PartServe] == nil {
		t.Errorf("never, without a proxy: %+v, %v", status.Parts, err)
	}
}
