// Package pathserver tells members of a collective which source ports lead along which paths of a known network (G.
// Detal, 2014, section 5.5.2).
//
// server.go answers requests, and client.go sends them. They are JSON over HTTPS (protocol.go). Both ends show
// certificates of the collective.
package pathserver

import (
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/paths/known"
)

// DefaultPort is the TCP port of a path server.
const DefaultPort = 45674

// alpn is the only protocol that package http accepts besides HTTP/2.
const alpn = "http/1.1"

// The URL paths of requests. All use the method POST.
const (
	placePath = "/v1/place"
	flowPath  = "/v1/flow"
	movedPath = "/v1/moved"
)

// Limits of a request and of its answer.
const (
	maxRequest = 4096
	maxAnswer  = 1 << 18
	maxPaths   = 16
	maxEach    = 64
)

// PlaceRequest asks for source ports of TCP connections that lead along several paths. The server then counts a large
// flow on each of these paths. Asking again renews the flows.
type PlaceRequest struct {
	Source      netip.Addr     `json:"source"`
	Destination netip.AddrPort `json:"destination"`
	Paths       int            `json:"paths"` // number of paths, from 1
	Each        int            `json:"each"`  // number of ports for each path, from 1
	// Waypoint is the address to which a detour's packets go first. From there, the waypoint sends them to the
	// destination with the same source ports. Its port is 0 if a tunnel leads to the waypoint. Without a Waypoint, the
	// paths are direct.
	Waypoint netip.AddrPort `json:"waypoint,omitzero"`
}

// detour returns the legs of the connections.
func (q *PlaceRequest) detour() known.Detour {
	leg := func(from netip.Addr, to netip.AddrPort) known.Flow {
		return known.Flow{Source: netip.AddrPortFrom(from, 0), Destination: to, Protocol: packet.ProtocolTCP}
	}
	via := q.Waypoint.Addr()
	switch {
	case !via.IsValid():
		return known.Detour{Legs: []known.Flow{leg(q.Source, q.Destination)}}
	case q.Waypoint.Port() == 0:
		return known.Detour{Legs: []known.Flow{leg(via, q.Destination)}, Tunnelled: true}
	}
	return known.Detour{Legs: []known.Flow{leg(q.Source, q.Waypoint), leg(via, q.Destination)}}
}

// Placed is a path with the ports that lead along it.
type Placed struct {
	Ports []uint16 `json:"ports"`
	There []string `json:"there"` // routers and hosts on the way to the destination
	Back  []string `json:"back"`
}

// PlaceAnswer has the paths. There are fewer than requested if the network does not have enough.
type PlaceAnswer struct {
	Paths []Placed `json:"paths"`
	// Seconds is the time after which the server forgets the flows.
	Seconds int `json:"seconds"`
}

// FlowRequest asks for the path of a TCP connection.
type FlowRequest struct {
	Source      netip.AddrPort `json:"source"`
	Destination netip.AddrPort `json:"destination"`
}

// FlowAnswer has the paths of a connection's packets in both directions.
type FlowAnswer struct {
	There []string `json:"there"`
	Back  []string `json:"back"`
}

// MovedRequest waits until the server has moved flows of the member that asks. A member can have one such request open:
// the next one ends it.
type MovedRequest struct{}

// MovedAnswer has the destinations of direct flows that were moved. It is empty if none was moved within movedTime. The
// member should send a PlaceRequest for each at once, to get the new ports.
type MovedAnswer struct {
	Destinations []netip.AddrPort `json:"destinations,omitempty"`
}

// movedTime is the time after which a MovedRequest is answered anyway. So requests of hosts that have disappeared are
// not kept longer.
const movedTime = 5 * time.Minute

// problem is the body of an answer that refuses a request.
type problem struct {
	Error string `json:"error"`
}
