package gate

import (
	"net"
	"strconv"
	"sync"

	"github.com/detour-collective/dcol/internal/enrol"
)

// DefaultBusPort is the TCP port of the embedded bus.
const DefaultBusPort = 45673

// Addresses has the addresses at which members reach this coordinator and its bus. It is safe for concurrent use.
type Addresses struct {
	name     string   // of the coordinator's host
	hosts    []string // names or IP addresses
	external []enrol.Endpoint

	mu         sync.Mutex
	front, bus string // host:port, as configured, or as they listen
	listening  bool
}

// NewAddresses returns the addresses as configured: the hosts with the ports of front and bus. External lists the
// servers of an external bus; if there are none, the bus is embedded.
func NewAddresses(name string, hosts []string, front, bus string, external []enrol.Endpoint) *Addresses {
	return &Addresses{name: name, hosts: hosts, front: front, bus: bus, external: external}
}

// Listening sets the addresses at which HTTPS and the embedded bus listen.
func (a *Addresses) Listening(front, bus string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.front, a.bus, a.listening = front, bus, true
}

// Closed records that nothing listens any more.
func (a *Addresses) Closed() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.listening = false
}

// Bound returns the addresses at which HTTPS and the embedded bus listen; empty: they do not.
func (a *Addresses) Bound() (front, bus string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.listening {
		return "", ""
	}
	return a.front, a.bus
}

// Coordinators returns the addresses at which members reach this coordinator.
func (a *Addresses) Coordinators() []enrol.Endpoint {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.endpoints(a.front, enrol.DefaultPort)
}

// BusServers returns the addresses at which members reach the bus.
func (a *Addresses) BusServers() []enrol.Endpoint {
	if len(a.external) > 0 {
		return a.external
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.endpoints(a.bus, DefaultBusPort)
}

// endpoints returns the hosts with the port of an address.
func (a *Addresses) endpoints(address string, defaultPort int) (out []enrol.Endpoint) {
	_, port, err := net.SplitHostPort(address)
	if err != nil || port == "" || port == "0" {
		port = strconv.Itoa(defaultPort)
	}
	for _, h := range a.hosts {
		out = append(out, enrol.Endpoint{Name: a.name, Address: net.JoinHostPort(h, port)})
	}
	return out
}
