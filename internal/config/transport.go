package config

import (
	"net/netip"

	"github.com/detour-collective/dcol/internal/units"
)

// Options are TCP options by which this host and others ask each other for settings.
type Options struct {
	Networks []netip.Prefix `toml:"networks"` // peers with which they are exchanged; none: all
	Ask      AskOptions     `toml:"ask"`
	Accept   AcceptOptions  `toml:"accept"`
}

// AskOptions are the options that this host asks of peers. Zero values ask nothing.
type AskOptions struct {
	UserTimeout   units.Duration `toml:"user_timeout"`
	Congestion    string         `toml:"congestion"`
	InitialWindow int            `toml:"initial_window"` // segments
	// AckDelay is in percent of the minimum round trip. AckSegments is the number of segments that may wait for an ACK.
	AckDelay    int `toml:"ack_delay"`
	AckSegments int `toml:"ack_segments"`
	// Rate bounds each subflow that a peer sends to this host.
	Rate units.Cap `toml:"rate"`
}

// AcceptOptions bound the options that this host grants to peers. Zero values grant nothing.
type AcceptOptions struct {
	UserTimeoutMin units.Duration `toml:"user_timeout_min"`
	UserTimeoutMax units.Duration `toml:"user_timeout_max"`
	Congestion     []string       `toml:"congestion"`
	InitialWindow  int            `toml:"initial_window"` // segments at most
	Trusted        []netip.Prefix `toml:"trusted"`        // may ask for an initial window
	AckDelay       bool           `toml:"ack_delay"`
	RateMin        units.Cap      `toml:"rate_min"` // the lowest that is granted; off: none
}

// Congestion chooses the congestion control of connections of this host. If several match a connection, those of the
// innermost cgroup decide, and of these the first.
type Congestion struct {
	Use      string         `toml:"use"`      // lia, olia, balia, wvegas, or one of the kernel's
	Cgroup   string         `toml:"cgroup"`   // a folder; empty: all programs
	Ports    []int          `toml:"ports"`    // of servers; none: all
	Networks []netip.Prefix `toml:"networks"` // of peers; none: all
}
