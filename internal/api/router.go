package api

import "net/netip"

// Router describes the router role, which chooses among equal next hops by ports.
type Router struct {
	Cipher string `json:"cipher"`
	Radix  int    `json:"radix"`
	// Decoded counts packets whose ports named the next hop. Hashed counts the others, whose next hop was chosen by a hash.
	Decoded uint64          `json:"decoded_packets"`
	Hashed  uint64          `json:"hashed_packets"`
	Routes  []BalancedRoute `json:"routes"`
}

// BalancedRoute is a route with several next hops.
type BalancedRoute struct {
	Prefix   netip.Prefix `json:"prefix"`
	NextHops []NextHop    `json:"next_hops"` // by number
	// Left is the reason why the kernel chooses alone: weights, resilient, radix, too_many or single. It is empty if
	// dcol's program chooses.
	Left string `json:"left_to_kernel,omitempty"`
}

// NextHop is a next hop of a route.
type NextHop struct {
	Gateway   netip.Addr `json:"gateway"` // invalid: the destination is a neighbour
	Interface string     `json:"interface"`
	Dead      bool       `json:"dead,omitempty"`
}
