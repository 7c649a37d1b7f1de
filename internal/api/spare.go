package api

import "net/netip"

// SpareRequest has the MPTCP connection that a program is about to make from a local address get no detours: one with
// which others are compared. It holds for a minute.
type SpareRequest struct {
	Local netip.AddrPort `json:"local"`
}

// Spared confirms a SpareRequest.
type Spared struct{}
