package relay

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/converter/server"
	"github.com/detour-collective/dcol/internal/strangers"
)

// incoming holds the ports at which connections are taken for members.
type incoming struct {
	places *strangers.Places
	taken  map[string]taken // by the part's name
}

type taken struct {
	front *server.Incoming
	until time.Time // when the last way to the member expires
}

func newIncoming() incoming {
	return incoming{places: server.NewPlaces(), taken: make(map[string]taken)}
}

// takeIncoming makes the relay take connections at these ports only. If list is nil, it changes nothing. Open
// connections continue.
func (r *relay) takeIncoming(list []Incoming) {
	if list == nil {
		return
	}
	wanted := make(map[string]bool)
	for _, x := range list {
		if wanted[x.Part()] = !x.Expelled; x.Expelled && r.parts[x.Part()] != nil {
			r.parts[x.Part()].stop()
		}
	}
	for name := range r.incoming.taken { // first, because another member may have the port now
		if !wanted[name] {
			r.endTaking(name)
		}
	}
	for _, x := range list {
		if x.Expelled {
			continue
		}
		t := taken{front: r.incoming.taken[x.Part()].front}
		if t.front == nil {
			t.front = server.NewIncoming(r.incoming.places)
		}
		t.front.Set(server.Listener{Mark: x.Mark, Ways: x.Ways})
		for _, w := range x.Ways {
			if w.Expires.After(t.until) {
				t.until = w.Expires
			}
		}
		r.incoming.taken[x.Part()] = t
		r.keep(x.Part(), entrance{address: fmt.Sprintf(":%d", x.Port), loops: 1, front: always(t.front)})
	}
}

// endIncoming stops taking connections for members whose leases have ended. It is needed while there is no agent.
func (r *relay) endIncoming(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining {
		return
	}
	for name, t := range r.incoming.taken {
		if now.After(t.until) {
			r.endTaking(name)
		}
	}
}

func (r *relay) endTaking(name string) {
	r.drop(name)
	delete(r.incoming.taken, name)
}

// receive accepts connections that converters bring to services of this host. If x is nil, it stops that.
func (r *relay) receive(x *Receive) {
	if x == nil {
		r.drop(PartReceive)
		return
	}
	if r.receiver == nil {
		r.receiver = server.NewReceiver(x.Key)
	}
	r.receiver.SetKey(x.Key)
	services := make(map[uint32]netip.AddrPort)
	for _, s := range x.Services {
		services[s.Number] = s.To
	}
	r.receiver.SetServices(services)
	r.keep(PartReceive, entrance{address: fmt.Sprintf(":%d", x.Port), front: always(r.receiver)})
}
