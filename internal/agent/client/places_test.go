package client

import (
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/detour"
)

// A server closes what is more than it takes. That is counted, and no later connection asks
// it for more.
func TestServerThatTakesOneDetour(t *testing.T) {
	l := buildLab(t, serverPort)
	l.spare, l.subflows = detour.Via{Waypoint: "carol", Addr: l.Host("other").Addr4()}, 3
	l.sh("server", "ip mptcp limits set subflow 1 add_addr_accepted 0")
	l.serve()
	l.startClient()
	first := l.dial()
	echo(t, first, "hello")
	const note = "the server takes 1 beside the first subflow"
	u := l.eventually(note, func(u *api.Using) bool {
		return len(u.Connections) == 1 && strings.HasPrefix(u.Connections[0].Note, note)
	})
	if u.Counters.SubflowsRefused == 0 {
		t.Errorf("no refused subflow is counted: %+v", u.Counters)
	}
	l.hasPaths("direct up, mapped up")

	second := l.dial()
	echo(t, second, "hello")
	after := l.eventually("the second connection has a detour", func(u *api.Using) bool {
		return len(u.Connections) == 2 && len(u.Connections[1].Subflows) == 2 && u.Connections[1].Subflows[1].State == "up"
	})
	if more := after.Counters.SubflowsAsked - u.Counters.SubflowsAsked; more != 1 || !strings.HasPrefix(after.Connections[1].Note, note) {
		t.Errorf("the second connection asked for %d subflows, and says %q", more, after.Connections[1].Note)
	}
}
