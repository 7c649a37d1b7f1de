package relay

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/converter/server"
	"github.com/detour-collective/dcol/internal/strangers"
)

// incoming are the ports at which connections are taken for members.
type incoming struct {
	places *strangers.Places
	taken  map[string]taken // by the name of the part
}

type taken struct {
	front *server.Incoming
	until time.Time // the last way ends
}

func newIncoming() incoming {
	return incoming{places: server.NewPlaces(), taken: make(map[string]taken)}
}

// takeIncoming takes connections at these ports, and at no others; nil: at those of before. Connections that there are
// continue.
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
	for name := range r.incoming.taken { // first, as another member may have the port now
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

// endIncoming takes no more connections for members whose leases are over, in case that there is no agent to say so.
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

// receive has converters bring connections to services of this host; nil: none do.
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
