package relay

import (
	"net/netip"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/converter/known"
)

// Ends are the two ends of a connection to a converter, as this host's kernel names them.
type Ends struct {
	Local     netip.AddrPort `json:"local"`
	Converter netip.AddrPort `json:"converter"`
}

const (
	ledMost = 16 << 10
	ledFor  = 30 * 24 * time.Hour
)

// led remembers for which server each connection to a converter is. It is not told when a connection ends: another one with
// the same ends takes its place.
type led struct {
	mu      sync.Mutex
	servers *known.Map[Ends, netip.AddrPort]
}

func newLed() *led { return &led{servers: known.NewMap[Ends, netip.AddrPort](ledMost)} }

// note implements client.Config.Led.
func (l *led) note(local, converter, server netip.AddrPort) {
	if !local.IsValid() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.servers.Set(Ends{unmapped(local), unmapped(converter)}, unmapped(server), time.Now().Add(ledFor))
}

// find returns the server of each connection; the zero AddrPort if it is not known.
func (l *led) find(list []Ends) []netip.AddrPort {
	l.mu.Lock()
	defer l.mu.Unlock()
	servers := make([]netip.AddrPort, len(list))
	for i, e := range list {
		servers[i], _ = l.servers.Get(e, time.Now())
	}
	return servers
}

func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }
