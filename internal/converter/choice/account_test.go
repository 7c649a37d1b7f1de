package choice

import (
	"net/netip"
	"slices"
	"testing"
	"time"
)

// What a client's connections have shown, and what its programs report, holds for its own connections and ends with time.
func TestAccounts(t *testing.T) {
	alice, phone := Who{User: 1000}, Who{Host: netip.MustParseAddr("10.0.0.9")}
	others := []Who{{}, {User: 1001}, {Host: netip.MustParseAddr("10.0.0.8")}}
	port := func(p uint16) netip.AddrPort { return netip.AddrPortFrom(server.Addr(), p) }
	both, none := []netip.AddrPort{near, far}, []netip.AddrPort(nil)
	for name, test := range map[string]struct {
		happens func(*Account)
		at      netip.AddrPort
		want    []netip.AddrPort
		lasts   time.Duration
	}{
		"the server speaks MPTCP":              {func(a *Account) { a.Learned(server, true, start) }, server, none, time.Hour},
		"the server speaks MPTCP no more":      {func(a *Account) { a.Learned(server, true, start); a.Learned(server, false, start) }, server, both, 0},
		"a converter does not serve":           {func(a *Account) { a.Unserved(near, server, start) }, server, []netip.AddrPort{far}, unservedFor},
		"a converter is far from the server":   {func(a *Account) { a.Carried(near, server, time.Hour, start) }, server, []netip.AddrPort{far, near}, timesFor},
		"the server is silent":                 {func(a *Account) { a.Silent(near, server, start) }, server, []netip.AddrPort{far}, unservedFor},
		"another port of the server is silent": {func(a *Account) { a.Silent(near, port(1), start) }, server, both, 0},
		"many ports of the server are silent": {func(a *Account) {
			for p := range uint16(20) {
				a.Silent(near, port(1000+p), start)
			}
		}, server, both, 0},
		"several servers are silent": {func(a *Account) {
			for i := range byte(refusalsMost) {
				a.Silent(near, netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, i}), 443), start)
			}
		}, server, []netip.AddrPort{far}, backoffLeast},
	} {
		for _, who := range []Who{alice, phone, {}} {
			c := with(Policy{Mode: Always}, near, far)
			test.happens(c.Account(who, start))
			if got := c.Choose(who, test.at, start); !slices.Equal(got, test.want) {
				t.Errorf("%s: %+v gets %v, want %v", name, who, got, test.want)
			}
			if test.lasts > 0 {
				if got := c.Choose(who, test.at, start.Add(test.lasts-1)); !slices.Equal(got, test.want) {
					t.Errorf("%s: later %+v gets %v, want %v", name, who, got, test.want)
				}
				if got := c.Choose(who, test.at, start.Add(test.lasts)); !slices.Equal(got, both) {
					t.Errorf("%s: at last %+v gets %v, want %v", name, who, got, both)
				}
			}
			for _, other := range others {
				if got := c.Choose(other, test.at, start); other != who && !slices.Equal(got, both) {
					t.Errorf("%s: for %+v, %+v gets %v, want %v", name, who, other, got, both)
				}
			}
		}
	}
}

// A host that takes one address after the other fills no memory, and does not touch this host's account.
func TestAccountsAreLimited(t *testing.T) {
	c := with(Policy{Mode: Always}, near)
	c.Account(Who{}, start).Silent(near, server, start)
	for i := range 10 * accountsMost {
		its := c.Account(Who{Host: netip.AddrFrom16([16]byte{0xfd, byte(i), byte(i >> 8)})}, start)
		for j := range 2 * accountServersMost {
			its.Silent(near, netip.AddrPortFrom(server.Addr(), uint16(j)), start)
		}
		if its.silent.Len() > accountServersMost {
			t.Fatalf("an account has %d servers", its.silent.Len())
		}
	}
	if c.accounts.Len() > accountsMost || len(c.Choose(Who{}, server, start)) > 0 {
		t.Errorf("%d accounts; this host uses %v", c.accounts.Len(), c.Choose(Who{}, server, start))
	}
}

// A user's reports do not prove a path for messages in SYNs, nor do they end its use for others.
func TestFastOpenOfUsers(t *testing.T) {
	c, from, alice, bob := with(Policy{Mode: Always, FastOpen: true}, near), netip.MustParseAddr("192.0.2.200"), Who{User: 1000}, Who{User: 1001}
	may := func(who Who) bool { return c.MayFastOpenFor(who, from, near, server, start) }
	c.Account(alice, start).FastOpened(near, FastOpenWorked, start)
	if may(alice) || c.fastPath(from, near, start).proven {
		t.Error("a user's report proves the path")
	}
	c.FastOpened(from, near, FastOpenWorked, start)
	if !may(alice) {
		t.Error("a user does not use the proven path")
	}
	c.Account(alice, start).FastOpened(near, FastOpenFailed, start)
	if may(alice) || !may(bob) || !c.MayFastOpen(from, near, server, start) {
		t.Errorf("after a user's failure, users may: %v, %v", may(alice), may(bob))
	}
}
