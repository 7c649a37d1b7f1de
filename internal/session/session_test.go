package session

import (
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/session/wire"
)

func TestMap(t *testing.T) {
	for _, listen := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(listen, func(t *testing.T) {
			a := newAuthority(t)
			g := &granter{}
			w := startServer(t, ServerConfig{Identity: a.identity("bob"), Listen: listen, Handler: g})
			alice := a.identity("alice")
			m := startClient(t, alice, "bob", w.at)
			s := m.awaitUp()
			if s.Observed.Addr() != w.at.Addr() || s.Local != w.at.Addr() || s.Lease != time.Minute || len(s.Offers) != 1 || s.Offers[0] != wire.Mapped {
				t.Errorf("the greeting said %+v", s)
			}
			got := m.mustMap("203.0.113.5:443")
			if want := (Grant{Port: 443, Lease: time.Minute, Client: w.at.Addr()}); got != want {
				t.Errorf("granted %+v, want %+v", got, want)
			}
			if s := m.State(); s.RTT <= 0 || s.MinRTT <= 0 || s.MinRTT > s.RTT*10 || s.Loss != 0 {
				t.Errorf("measured %+v", s)
			}
			live := w.Sessions()
			if len(live) != 1 || live[0].Peer.Name != "alice" || live[0].Peer.Serial != alice.Self().Serial || live[0].Peer.Addr != s.Observed.Addr() {
				t.Errorf("live sessions %+v", live)
			}
			m.Close()
			w.stop()
			if up, down := g.counts(); up != 1 || down != 1 {
				t.Errorf("%d sessions up, %d down", up, down)
			}
			_, err := m.mapping("203.0.113.5:443")
			if err == nil {
				t.Error("mapped over a closed session")
			}
		})
	}
}
