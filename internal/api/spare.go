package api

import "net/netip"

// SpareRequest keeps detours away from the MPTCP connection that a program is about to open from a local address, so
// that other connections can be compared with it. It is valid for a minute.
type SpareRequest struct {
	Local netip.AddrPort `json:"local"`
}

// Spared confirms a SpareRequest.
type Spared struct{}
