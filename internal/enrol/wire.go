package enrol

import (
	"net/netip"
	"time"
)

// The paths of the HTTPS interface. Bodies are JSON; keys that are not known are left out.
const (
	pathJoin  = "/v1/join"
	pathRenew = "/v1/renew"
	pathTrust = "/v1/trust"
	pathTime  = "/v1/time"
)

const (
	maxRequest = 16 << 10
	maxAnswer  = 12 << 20 // roots and lists may have 4 MiB each, and JSON writes an end of line in two
	maxLANs    = 16

	// MaxClockOff is how far a joining host's clock may be from the coordinator's: a certificate begins five
	// minutes before it is made, and records from further ahead are not taken by others.
	MaxClockOff = 5 * time.Minute
)

// JoinRequest is what a host that is no member sends.
type JoinRequest struct {
	Collective string         `json:"collective"`
	Secret     Secret         `json:"secret"`
	Request    string         `json:"request"` // PEM, as collective.NewRequest makes it; it has the name
	Time       time.Time      `json:"time"`    // by its own clock
	LANs       []netip.Prefix `json:"lans,omitempty"`
}

// RenewRequest is what a member sends whose certificate is to be renewed.
type RenewRequest struct {
	Request string         `json:"request"`
	Time    time.Time      `json:"time"`
	LANs    []netip.Prefix `json:"lans,omitempty"`
}

// Welcome is all that makes a host a member. Roots and lists are to be taken before the certificate.
type Welcome struct {
	Chain string `json:"chain"` // PEM: the member's certificate, and the signer's if there is one
	TrustMessage
	BusJWT       string     `json:"bus-jwt"`
	BusServers   []Endpoint `json:"bus-servers"`
	Coordinators []Endpoint `json:"coordinators"`
	// Time is the coordinator's.
	Time time.Time `json:"time"`
	// Off is how far this host's clock is from the coordinator's; negative: behind. It is not sent.
	Off time.Duration `json:"-"`
}

// answer is the body of every answer.
type answer struct {
	Time    time.Time     `json:"time"`
	Refusal *Refusal      `json:"refusal,omitempty"`
	Welcome *Welcome      `json:"welcome,omitempty"`
	Trust   *TrustMessage `json:"trust,omitempty"`
}
