// Package pathserver tells members of a collective which source ports lead along which paths of a known network (G.
// Detal, 2014, section 5.5.2). server.go answers, client.go asks. Requests are JSON over HTTP (protocol.go), with the
// certificates of the collective at both ends.
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

// The requests, each a POST.
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

// PlaceRequest asks for ports of TCP connections that lead along several paths, and makes the server count a large flow
// on each. Asking again renews them.
type PlaceRequest struct {
	Source      netip.Addr     `json:"source"`
	Destination netip.AddrPort `json:"destination"`
	Paths       int            `json:"paths"` // how many, from 1
	Each        int            `json:"each"`  // ports on each path, from 1
	// Waypoint is the address to which a detour's packets are sent first. The same ports lead on from there. It has no
	// port if a tunnel leads there. Without a Waypoint, the paths are direct.
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

// PlaceAnswer has the paths: fewer than wanted if there are no more.
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

// FlowAnswer has the path of a connection's packets in either direction.
type FlowAnswer struct {
	There []string `json:"there"`
	Back  []string `json:"back"`
}

// MovedRequest waits until the server has moved flows of the member that asks. A member has one such request open:
// a further request ends it.
type MovedRequest struct{}

// MovedAnswer has the destinations of direct flows that were moved: none if nothing has happened for some minutes. A
// PlaceRequest, which should follow at once, returns the new ports.
type MovedAnswer struct {
	Destinations []netip.AddrPort `json:"destinations,omitempty"`
}

// movedTime is the time after which a MovedRequest is answered anyway. It bounds the time for which requests of
// hosts that are gone are kept.
const movedTime = 5 * time.Minute

// problem is the body of a refusal.
type problem struct {
	Error string `json:"error"`
}
