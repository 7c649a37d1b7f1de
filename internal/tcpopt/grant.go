package tcpopt

import (
	"fmt"
	"time"
)

// Verdict is the outcome of a request. The program in the kernel uses the same numbers.
type Verdict uint32

const (
	Granted Verdict = iota + 1
	Capped
	Malformed
	OutOfBounds
	Unknown
	Untrusted
	Late
	Refused
	Sent
)

var verdictNames = map[Verdict]string{
	Granted: "granted", Capped: "capped", Malformed: "malformed", OutOfBounds: "out-of-bounds", Unknown: "unknown",
	Untrusted: "untrusted", Late: "late", Refused: "refused", Sent: "sent",
}

func (v Verdict) String() string {
	if name, ok := verdictNames[v]; ok {
		return name
	}
	return fmt.Sprintf("verdict %d", uint32(v))
}

// Explain returns the reason for a verdict as a clause, or an empty string if it needs none.
func (v Verdict) Explain() string {
	switch v {
	case Capped:
		return "within the bounds of this host and its kernel"
	case Malformed:
		return "the option has a wrong length"
	case OutOfBounds:
		return "the value has no meaning"
	case Unknown:
		return "this host does not grant it"
	case Untrusted:
		return "the peer is not in a trusted network"
	case Late:
		return "data was sent already, or it was not in the handshake"
	case Refused:
		return "the kernel refused it"
	}
	return ""
}

// Bounds are the limits within which a host grants requests.
type Bounds struct {
	UserTimeoutMin, UserTimeoutMax time.Duration
	// Congestions lists the congestion controls that are granted.
	Congestions []string
	// WindowMax is in segments.
	WindowMax uint32
	// RateMin is the lowest rate, in units of RateUnit.
	RateMin uint32
}

// Bound returns what a host grants of a request that comes from a trusted peer and in time. The kernel may still refuse
// it. For DelayedACK only the program in the kernel decides, because the decision depends on the connection's round
// trip.
func (b Bounds) Bound(r Request) (granted uint32, v Verdict) {
	switch r.Option {
	case UserTimeout:
		granted = min(max(r.Value, seconds(b.UserTimeoutMin)), seconds(b.UserTimeoutMax))
	case Congestion:
		for _, name := range b.Congestions {
			if n, ok := CongestionNumber(name); ok && uint32(n) == r.Value {
				return r.Value, Granted
			}
		}
		return 0, Unknown
	case InitialWindow:
		granted = min(r.Value, b.WindowMax)
	case Rate:
		granted = max(r.Value, b.RateMin)
	case DelayedACK:
		if s := StrategyOf(r.Value); s.Fraction == 0 || s.Segments == 0 {
			return 0, OutOfBounds
		}
		return 0, Capped
	default:
		return 0, Unknown
	}
	switch {
	case r.Value == 0:
		return 0, OutOfBounds
	case granted == r.Value:
		return granted, Granted
	}
	return granted, Capped
}

func seconds(d time.Duration) uint32 { return uint32(d / time.Second) }
