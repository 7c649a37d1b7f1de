package serving

import (
	"errors"
	"testing"

	"github.com/detour-collective/dcol/internal/agent/relaying"
	"github.com/detour-collective/dcol/internal/converter/relay"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// A member is told that the relay could not listen at a port, or that it has no right to. The name of the part is the relay's.
func TestPortsThatTheRelayCannotHave(t *testing.T) {
	ns := netnstest.New(t)
	ns.Output(t, "sysctl", "-qw", "net.ipv4.ip_unprivileged_port_start=500")
	parts := map[string]*relay.Part{
		"incoming at 8080 for alice": {Problem: "address already in use"},
		"incoming at 8081 for alice": {},
		"incoming at 80 for alice":   {}, // an earlier relay had the right
	}
	for _, x := range []struct {
		now    relaying.Standing
		port   uint16
		member string
		want   bool
	}{
		{relaying.Standing{Relay: &relay.Status{Parts: parts}}, 8080, "alice", true},
		{relaying.Standing{Relay: &relay.Status{Parts: parts}}, 8080, "bob", false},
		{relaying.Standing{Relay: &relay.Status{Parts: parts}}, 8081, "alice", false},
		{relaying.Standing{Relay: &relay.Status{Parts: parts}}, 80, "alice", false},
		{relaying.Standing{Relay: &relay.Status{Parts: parts}}, 81, "alice", true},
		{relaying.Standing{Err: errors.New("it starts")}, 499, "alice", true},
		{relaying.Standing{Err: errors.New("it starts")}, 500, "alice", false},
	} {
		ns.Must(t, func() error {
			if err := netnstest.LimitRights(); err != nil {
				return err
			}
			if got := portUnusable(x.now, x.port, x.member); got != x.want {
				t.Errorf("port %d of %s is unusable: %v, want %v", x.port, x.member, got, x.want)
			}
			return nil
		})
	}
}
