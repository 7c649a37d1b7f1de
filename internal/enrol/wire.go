package enrol

import (
	"net/netip"
	"time"
)

// Paths of the HTTPS interface. Bodies are JSON; unknown keys are ignored.
const (
	pathJoin  = "/v1/join"
	pathRenew = "/v1/renew"
	pathLeave = "/v1/leave"
	pathTrust = "/v1/trust"
	pathTime  = "/v1/time"
)

const (
	maxRequest = 16 << 10
	maxAnswer  = 12 << 20 // roots and lists may have 4 MiB each, and JSON writes an end of line in two
	maxLANs    = 16

	// MaxClockOff is how far a joining host's clock may be from the coordinator's. A certificate is valid from five
	// minutes before it is made, and records from further ahead are refused by others.
	MaxClockOff = 5 * time.Minute
)

// JoinRequest is sent by a host that wants to join.
type JoinRequest struct {
	Collective string         `json:"collective"`
	Secret     Secret         `json:"secret"`
	Request    string         `json:"request"` // PEM, from collective.NewRequest; includes the name
	Time       time.Time      `json:"time"`    // of its own clock
	LANs       []netip.Prefix `json:"lans,omitempty"`
}

// RenewRequest is sent by a member that wants to renew its certificate.
type RenewRequest struct {
	Request string         `json:"request"`
	Time    time.Time      `json:"time"`
	LANs    []netip.Prefix `json:"lans,omitempty"`
}

// LeaveRequest is sent by a member that ends its membership. The key of the TLS handshake identifies it.
type LeaveRequest struct {
	Time time.Time `json:"time"`
}

// Welcome is everything that makes a host a member. Take roots and lists before the certificate.
type Welcome struct {
	Chain string `json:"chain"` // PEM: the member's certificate, and the signer's if there is one
	TrustMessage
	BusJWT       string     `json:"bus-jwt"`
	BusServers   []Endpoint `json:"bus-servers"`
	Coordinators []Endpoint `json:"coordinators"`
	// Time is the coordinator's.
	Time time.Time `json:"time"`
	// Off is this host's clock minus the coordinator's. It is not sent.
	Off time.Duration `json:"-"`
}

// answer is the body of every answer.
type answer struct {
	Time    time.Time     `json:"time"`
	Refusal *Refusal      `json:"refusal,omitempty"`
	Welcome *Welcome      `json:"welcome,omitempty"`
	Trust   *TrustMessage `json:"trust,omitempty"`
	Left    bool          `json:"left,omitempty"` // the membership has ended
}
